"""Arrivals as the gateways counted them, also while one of them did not answer, and what engines counted."""

from __future__ import annotations

import pytest

from autoscaling_builders import START, Scenario, make_demand, make_figures, make_load, make_replica
from tidemill_operator.autoscaling.counting import count
from tidemill_operator.autoscaling.memory import Memory, Tokens
from tidemill_operator.autoscaling.model import FleetLoad, GatewayLoad

RATE = 4.0


def load_with(*are_silent: bool) -> FleetLoad:
    gateways = tuple(
        GatewayLoad(name=f"gateway-{n}", started=START - 5000, demand=None if is_silent else make_demand())
        for n, is_silent in enumerate(are_silent)
    )
    return make_load(3, gateways=gateways)


@pytest.mark.parametrize("silent", [(False, True), (True, True)])
def test_what_arrived_while_a_gateway_was_silent_counts_over_all_that_time(silent: tuple[bool, ...]) -> None:
    scenario = Scenario()
    before = scenario.run(load_with(False, False), 600, rate=RATE)
    scenario.run(load_with(*silent), 60, rate=RATE)
    after = scenario.run(load_with(False, False), 60, rate=RATE)
    arrivals = scenario.state.memory.arrivals
    assert [a.requests / a.seconds for a in arrivals] == pytest.approx([RATE] * len(arrivals))
    assert sum(a.seconds for a in arrivals) == pytest.approx(scenario.now - arrivals[0].at + 5.0)
    assert {d.replicas for d in scenario.decisions[-24:]} == {before.replicas} == {after.replicas}


def test_a_last_word_that_is_still_believed_is_no_new_answer() -> None:
    memory, rate = Memory(), 2.0
    for second in range(0, 100, 5):
        at = START + second
        answered = at if not 40 <= second < 55 else START + 35
        demands = [
            make_demand(sampled_at=time, requests_total=rate * (time - START)) for time in (at, answered)
        ]
        gateways = tuple(
            GatewayLoad(name=f"gateway-{n}", started=START, demand=demand) for n, demand in enumerate(demands)
        )
        memory = count(make_load(1, at=at, gateways=gateways), [], memory)
    assert [a.requests / a.seconds for a in memory.arrivals] == pytest.approx([2 * rate] * 16)
    assert sum(a.seconds for a in memory.arrivals) == 95.0


def test_arrivals_are_counted_on_when_the_clock_was_set_back() -> None:
    memory, rate = Memory(), 2.0
    for number in range(40):
        at = START + 5 * number - (600 if number >= 20 else 0)
        demand = make_demand(sampled_at=at, requests_total=5 * rate * number)
        gateways = (GatewayLoad(name="gateway", started=START, demand=demand),)
        memory = count(make_load(1, at=at, gateways=gateways), [], memory)
    assert [a.requests / a.seconds for a in memory.arrivals] == pytest.approx([rate] * 38)


def test_a_gateway_that_joins_begins_to_count_at_its_first_answer() -> None:
    scenario = Scenario()
    scenario.run(load_with(False), 600, rate=RATE)
    scenario.run(load_with(False, False), 300, rate=RATE)
    arrivals = scenario.state.memory.arrivals
    assert [a.requests / a.seconds for a in arrivals[-50:]] == pytest.approx([RATE] * 50)


def engine_counts(prefill: float, cached: float, ended: float) -> FleetLoad:
    figures = make_figures(
        process_started=0.0, prefill_tokens_total=prefill, cached_tokens_total=cached, requests_total=ended
    )
    return make_load(1, replicas=(make_replica(0, figures=figures),))


def counted(*loads: FleetLoad) -> Tokens:
    memory = Memory()
    for load in loads:
        memory = count(load, load.replicas, memory)
    return memory.tokens


def test_cached_tokens_that_are_told_before_their_prompts_cost_no_count() -> None:
    """The second reading has a crowd's cached tokens and not yet its prompts, of which it is the rest."""
    tokens = counted(
        engine_counts(1000, 500, 10), engine_counts(400, 1100, 14), engine_counts(1300, 1100, 20)
    )
    assert (tokens.prefill, tokens.cached, tokens.ended) == (300, 600, 10)


def test_an_engine_that_began_anew_and_does_not_say_so_is_counted_from_there_on() -> None:
    tokens = counted(engine_counts(1000, 500, 10), engine_counts(10, 0, 1), engine_counts(110, 5, 3))
    assert (tokens.prefill, tokens.cached, tokens.ended) == (100, 5, 2)
