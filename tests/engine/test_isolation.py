"""One tenant tries to learn whether another has sent a prompt: by cache, by timing and by every output.

Timing is virtual, so it is exact: what a tenant sees must equal what it would see had the other never come.
Each attack is first shown to work within one tenant, or a test that finds nothing would prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from engine_builders import make_harness, make_request
from tidemill_bench.engine_seam import EngineSetup, build_engine
from tidemill_bench.shapes import SimRequest
from tidemill_bench.simulator import Simulation, Simulator
from tidemill_bench.step_time import StepTime

STEP_TIME = StepTime(coefficients=(0.02, 0.0015, 8e-6, 1.4e-6, 8e-4))
SETUP = EngineSetup(
    max_num_seqs=8, max_num_batched_tokens=128, num_blocks=256, block_size=16, max_model_len=2048
)
SECRET = SimRequest(
    arrival_seconds=0.0, num_prompt_tokens=900, num_output_tokens=4, tenant="victim", prefix_ids=(7, 8)
)
PROBE = replace(SECRET, arrival_seconds=60.0, tenant="spy")
WRONG_GUESS = replace(PROBE, prefix_ids=(9, 10))


@dataclass(frozen=True)
class Seen:
    """Everything that the engine tells the sender of a request, and when."""

    ttft: float
    latency: float
    longest_gap: float
    queue_seconds: float
    num_cached_tokens: int
    num_tokens: int


def simulate(requests: list[SimRequest]) -> Simulation:
    return Simulator(build_engine(SETUP), STEP_TIME, requests).run()


def seen(requests: list[SimRequest], index: int = -1) -> Seen:
    """Return what the sender of one of the requests sees, to the nanosecond."""
    times = simulate(requests).times
    return Seen(
        ttft=round(float(times.first_token[index] - times.arrival[index]), 9),
        latency=round(float(times.last_token[index] - times.arrival[index]), 9),
        longest_gap=round(float(times.longest_gap[index]), 9),
        queue_seconds=round(float(times.queue_seconds[index]), 9),
        num_cached_tokens=int(times.num_cached_tokens[index]),
        num_tokens=int(times.num_tokens[index]),
    )


def test_a_prompt_that_another_tenant_has_sent_looks_like_one_that_nobody_has() -> None:
    own = seen([SECRET, replace(PROBE, tenant="victim")])
    assert own.num_cached_tokens > 800, "the attack works within a tenant"
    assert own.ttft < seen([PROBE]).ttft / 3

    assert seen([SECRET, PROBE]) == seen([PROBE])
    assert seen([SECRET, PROBE]) == seen([SECRET, WRONG_GUESS])


@pytest.mark.parametrize("length", [15, 16, 17, 511, 512, 513, 528])
def test_guessing_a_prompt_block_by_block_tells_nothing(length: int) -> None:
    right = replace(PROBE, num_prompt_tokens=length)
    wrong = replace(WRONG_GUESS, num_prompt_tokens=length)
    assert seen([SECRET, right]) == seen([SECRET, wrong])
    assert seen([SECRET, right]).num_cached_tokens == 0


def test_sending_the_prompt_while_another_tenant_computes_it_neither_waits_nor_gains() -> None:
    own = replace(PROBE, arrival_seconds=0.1, tenant="victim")
    assert seen([SECRET, own]).num_cached_tokens > 800, "a follower of its own tenant waits and shares"
    right, wrong = replace(PROBE, arrival_seconds=0.1), replace(WRONG_GUESS, arrival_seconds=0.1)
    assert seen([SECRET, right]) == seen([SECRET, wrong])


def test_many_probes_in_turn_find_their_own_blocks_and_no_one_elses() -> None:
    probes = [replace(PROBE, arrival_seconds=60.0 + 30 * i) for i in range(3)]
    cached = simulate([SECRET, *probes]).times.num_cached_tokens.tolist()
    assert cached[1] == 0
    assert cached[2] == cached[3] > 800


def test_a_tenant_without_a_name_shares_with_no_named_one() -> None:
    nameless = replace(PROBE, tenant="")
    assert seen([SECRET, nameless]) == seen([nameless])
    assert seen([replace(SECRET, tenant=""), PROBE]) == seen([PROBE])


@pytest.mark.parametrize("depth", [1, 2])
def test_tokens_and_hit_metrics_are_those_of_a_cold_cache(depth: int) -> None:
    prompt = make_request("secret", prompt_len=33).prompt_token_ids
    cold = make_harness(depth=depth)
    cold.add(make_request("probe", prompt=prompt, max_tokens=9, tenant="spy"))
    cold.run()

    warm = make_harness(depth=depth)
    warm.add(make_request("secret", prompt=prompt, max_tokens=9, tenant="victim"))
    warm.run()
    hits = warm.scheduler.stats().prefix_hits_tokens
    warm.add(make_request("probe", prompt=prompt, max_tokens=9, tenant="spy"))
    warm.run()
    assert warm.scheduler.stats().prefix_hits_tokens == hits
    assert warm.tokens("probe") == cold.tokens("probe")
    told = [[o for o in harness.outputs if o.request_id == "probe"] for harness in (cold, warm)]
    assert [o.num_cached_tokens for o in told[1]] == [o.num_cached_tokens for o in told[0]]
    assert all(o.num_cached_tokens == 0 for o in told[1])

    warm.add(make_request("again", prompt=prompt, max_tokens=9, tenant="victim"))
    warm.run()
    assert warm.scheduler.stats().prefix_hits_tokens > hits, "the secret was there to be found"


def test_a_few_very_long_requests_of_one_tenant_leave_room_for_another_ones_in_the_kv_cache() -> None:
    hello = SimRequest(arrival_seconds=0.0, num_prompt_tokens=8, num_output_tokens=1, tenant="quiet")
    long = SimRequest(arrival_seconds=1.0, num_prompt_tokens=900, num_output_tokens=300, tenant="flood")
    asks = SimRequest(arrival_seconds=10.0, num_prompt_tokens=900, num_output_tokens=20, tenant="quiet")
    flood = [replace(long, prefix_ids=(number,)) for number in range(4)]
    times = simulate([hello, *flood, asks]).times
    assert times.last_token[-1] < times.last_token[1:5].min()
    nobody_else = simulate([replace(request, tenant="flood") for request in (*flood, asks)]).times
    assert nobody_else.first_token[-1] > nobody_else.last_token[:4].min(), "four of them fill the cache"
