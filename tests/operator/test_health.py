"""What probes and Prometheus are told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from tidemill_operator.health import Health, make_app

AiohttpClient = Callable[[web.Application], Awaitable[Any]]


@pytest.mark.parametrize("is_well", [True, False])
async def test_probes_are_told_how_it_is(aiohttp_client: AiohttpClient, is_well: bool) -> None:
    health = Health(is_live=lambda: is_well, is_ready=lambda: not is_well)
    client = await aiohttp_client(make_app(health))
    live, ready = await client.get("/health/live"), await client.get("/health/ready")
    assert (live.status == 200, ready.status == 200) == (is_well, not is_well)


async def test_prometheus_gets_the_operators_metrics(aiohttp_client: AiohttpClient) -> None:
    client = await aiohttp_client(make_app(Health(is_live=lambda: True, is_ready=lambda: True)))
    answer = await client.get("/metrics")
    assert answer.status == 200
    text = await answer.text()
    for name in ("reconcile_seconds_count", "status_writes_total", "queue_keys", "is_leader"):
        assert f"tidemill_operator_{name}" in text
