"""Measures what a quiet tenant waits while another one floods a service, and whose fairness keeps that short.

Knows two tenants, two real engines on the fake runner, and three ways: the engines see one tenant only, the
engines share between tenants (the default), and the gateway lets in only so many requests per replica as well
(`spec.routing.maxInFlightPerReplica`). The loud tenant sends all its requests at once, the quiet one its own
at even intervals from then on. A wait is the time to the first byte of a streamed answer, and the number of
the other tenant's answers that began in it, which a busy machine does not blur. Each way starts with fresh
engines; client and gateway share this process, which has next to nothing to do.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import numpy as np

from tidemill_bench.gateway.engines import running_engine
from tidemill_bench.gateway.servers import make_world
from tidemill_gateway.keys import KeyRing, KeyRings
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_gateway.objects import KeySecret, Kind
from tidemill_gateway.parts import ServerConfig, Surroundings
from tidemill_gateway.process import listen, start_app
from tidemill_gateway.server import make_app
from tidemill_gateway.service_spec import Routing, TenantPolicy
from tidemill_gateway.state import ClusterState
from tidemill_gateway.waiting_room import WaitingConfig
from tidemill_gateway.world import put

SALT = b"bench"
LOUD, QUIET = "loud", "quiet"
TOO_MANY = 429


@dataclass(frozen=True, kw_only=True)
class FairnessPlan:
    """The two tenants' requests and the engines' size; a request decodes for `max_tokens` steps."""

    num_engines: int = 2
    max_num_seqs: int = 8
    max_queued: int = 1024
    step_ms: int = 20
    max_tokens: int = 32
    num_loud: int = 200
    num_quiet: int = 32
    quiet_seconds: float = 0.2
    quiet_weight: int = 1
    max_held: int = 100


@dataclass(frozen=True, kw_only=True)
class Way:
    """Who is fair: what engines are told, and how many requests per replica the gateway lets in."""

    names_tenants: bool = True
    max_in_flight: int | None = None


@dataclass(kw_only=True)
class Waits:
    """When one tenant's answered requests were sent and first heard of, how many were refused, the end."""

    sent: list[float] = field(default_factory=list)
    heard: list[float] = field(default_factory=list)
    num_refused: int = 0
    end: float = 0.0

    def figures(self, other: Waits) -> dict[str, Any]:
        """Give percentiles of the waits in milliseconds, and of the other one's answers begun meanwhile."""
        if not self.sent:
            return {"answered": 0, "refused": self.num_refused}
        sent, heard, others = np.array(self.sent), np.array(self.heard), np.sort(np.array(other.heard))
        passed = np.searchsorted(others, heard) - np.searchsorted(others, sent)
        return {
            "answered": len(self.sent),
            "refused": self.num_refused,
            "p50_ms": round(float(np.percentile(heard - sent, 50)) * 1000, 1),
            "p99_ms": round(float(np.percentile(heard - sent, 99)) * 1000, 1),
            "p50_passed_by": float(np.percentile(passed, 50)),
            "p99_passed_by": round(float(np.percentile(passed, 99)), 1),
            "last_ended_seconds": round(self.end, 2),
        }


def ways_of(plan: FairnessPlan) -> dict[str, Way]:
    """Give the ways by name."""
    slots = plan.max_num_seqs
    return {
        "one_tenant": Way(names_tenants=False),
        "engines": Way(),
        "gateway_half_as_many_again": Way(max_in_flight=slots + slots // 2),
        "gateway_twice_the_slots": Way(max_in_flight=2 * slots),
    }


async def measure_fairness() -> dict[str, Any]:
    """Let both tenants ask in each way, of engines whose queues hold the flood, and of some that it fills."""
    plans = {"room_for_all": FairnessPlan(), "full_queues": FairnessPlan(max_queued=24)}
    return {
        name: {way_name: await measure_way(plan, way) for way_name, way in ways_of(plan).items()}
        for name, plan in plans.items()
    }


async def measure_way(plan: FairnessPlan, way: Way) -> dict[str, Any]:
    """Let both tenants ask in one way; give the figures of each."""
    uri = f"sim://chat?step_ms={plan.step_ms}&output_tokens={plan.max_tokens}"
    flags = ("--max-num-seqs", str(plan.max_num_seqs), "--max-queued-requests", str(plan.max_queued))
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(running_engine(uri, *flags, "--trust-tenant-headers"))
            for _ in range(plan.num_engines)
        ]
        address = await stack.enter_async_context(_gateway(plan, way, engines))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        return await _ask_all(plan, session, address)


async def _ask_all(plan: FairnessPlan, session: aiohttp.ClientSession, address: str) -> dict[str, Any]:
    loud, quiet = Waits(), Waits()
    began = time.perf_counter()

    async def ask(tenant: str, waits: Waits, number: int, pause: float) -> None:
        await asyncio.sleep(pause)
        prompt = f"{tenant} {number}"
        body = {"model": "chat", "prompt": prompt, "max_tokens": plan.max_tokens, "stream": True}
        headers = {"Authorization": f"Bearer {tenant}"}
        start = time.perf_counter()
        async with session.post(f"http://{address}/v1/completions", json=body, headers=headers) as response:
            await response.content.readany()
            heard = time.perf_counter()
            await response.read()
            if response.status == TOO_MANY:
                waits.num_refused += 1
                return
            response.raise_for_status()
        waits.sent.append(start)
        waits.heard.append(heard)
        waits.end = time.perf_counter() - began

    await asyncio.gather(
        *(ask(LOUD, loud, number, 0.0) for number in range(plan.num_loud)),
        *(ask(QUIET, quiet, number, (1 + number) * plan.quiet_seconds) for number in range(plan.num_quiet)),
    )
    return {LOUD: loud.figures(quiet), QUIET: quiet.figures(loud)}


@asynccontextmanager
async def _gateway(plan: FairnessPlan, way: Way, engines: Sequence[str]) -> AsyncIterator[str]:
    """Serve a gateway over the engines here; give its address."""
    state = ClusterState(())
    state.update(make_world(list(engines), "LeastLoad"))
    service = state.world.services["service"]
    routing = Routing(
        strategy="LeastLoad",
        max_in_flight_per_replica=way.max_in_flight,
        needs_key=way.names_tenants,
        tenants=(TenantPolicy(name=QUIET, weight=plan.quiet_weight),),
    )
    hashes = tuple((hmac.digest(SALT, name.encode(), "sha256"), name) for name in (LOUD, QUIET))
    ring = KeyRing(salt=SALT, hashes=hashes, engine_token="gateway")  # noqa: S106 - engines here trust anybody
    rings = KeyRings(by_service={service.key: ring})
    state.update(put(state.world, Kind.SERVICES, replace(service, routing=routing)))
    state.update(put(state.world, Kind.KEYS, KeySecret(uid="keys", namespace="bench", rings=rings)))
    config = ServerConfig(waiting=WaitingConfig(max_held_requests=plan.max_held))
    app = make_app(config=config, state=state, metrics=GatewayMetrics(), around=Surroundings())
    runner = await start_app(app)
    try:
        port, _ = await listen(runner, "127.0.0.1", 0)
        yield f"127.0.0.1:{port}"
    finally:
        await runner.cleanup()
