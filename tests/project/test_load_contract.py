"""What engines and gateways say is what the operator's autoscaler reads: both sides of each document."""

from __future__ import annotations

import json

import msgspec
from prometheus_client import generate_latest

from api_builders import running_api
from fake_core import make_stats
from metrics_support import engine_registry
from tidemill_gateway.demand import DemandBook
from tidemill_operator.fleet.figures import demand_of_services, engine_from_load, engine_from_metrics


async def test_the_operator_reads_our_engines_load() -> None:
    async with running_api() as api:
        stats = make_stats(num_running=3, num_waiting=2, num_free_blocks=16, computed_tokens=70)
        stats = msgspec.structs.replace(
            stats, step_coefficients=[0.01, 1e-4, 1e-7, 1e-9, 1e-5], inter_token_seconds=[0.02]
        )
        await api.core.send(stats)
        async with api.session.get(api.admin_url + "/load") as answer:
            figures = engine_from_load(await answer.read(), 5.0)
    assert (figures.num_running, figures.num_waiting, figures.kv_use) == (3, 2, 0.75)
    assert figures.prefill_tokens_total == 70
    assert figures.max_num_seqs
    assert figures.capacity_tokens > 0
    assert figures.process_started > 1e9
    assert figures.step_times is not None
    assert figures.step_times.row_seconds == 1e-5
    assert figures.inter_token is not None
    assert figures.inter_token.cumulative_counts[-1] == 1
    assert figures.time_to_first_token is not None


def test_the_operator_reads_our_engines_metrics_as_it_reads_any_engines() -> None:
    figures = engine_from_metrics(generate_latest(engine_registry()).decode(), 5.0)
    assert (figures.num_running, figures.total_blocks, figures.block_size_tokens) == (0, 8, 8)
    assert figures.time_to_first_token is not None
    assert figures.requests_total is None, "nothing has ended, so the engine shows no such series yet"


def test_the_operator_reads_what_our_gateways_are_asked_for() -> None:
    book = DemandBook(gateway="gateway-0", started=3.0)
    key = ("prod", "chat")
    book.arrive(key, 40, 77.0)
    with book.held(key, 40):
        report = json.dumps(book.report([key, ("prod", "idle")])).encode()
    started, services = demand_of_services(report, 80.0)
    assert started == 3.0
    demand = services["prod/chat"]
    assert (demand.held_requests, demand.held_prompt_tokens, demand.requests_total) == (1, 40, 1)
    assert demand.last_request_time == 77.0
    assert services["prod/idle"].last_request_time is None
