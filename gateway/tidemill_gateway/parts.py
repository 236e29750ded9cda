"""The parts that live as long as the public application, made and ended in the right order.

Knows which part needs which. Refuses to know requests.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

from aiohttp import web

from tidemill_gateway.activation import ActivationHooks, Activator, StatusWriter
from tidemill_gateway.body import BodyLimits, HeldBodies
from tidemill_gateway.clocks import Clocks
from tidemill_gateway.demand import DemandBook
from tidemill_gateway.ledger import Ledger
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_gateway.objects import Pod
from tidemill_gateway.places import able
from tidemill_gateway.polling import Poller, PollingConfig
from tidemill_gateway.proxy import Proxy, ProxyConfig, make_session
from tidemill_gateway.selector import Selector
from tidemill_gateway.state import ClusterState
from tidemill_gateway.tenant_limits import TenantLimits
from tidemill_gateway.traffic import Traffic
from tidemill_gateway.waiting_room import WaitingConfig, WaitingRoom

MIB = 1024 * 1024
ACTIVE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """The public side's bounds, and the name under which this gateway counts."""

    max_body_bytes: int = 8 * MIB
    max_bodies_bytes: int = 256 * MIB
    """All bodies together, of requests that wait and of those that are being answered."""
    body_timeout_seconds: float = 60.0
    max_in_flight: int = 4096
    suspect_seconds: float = 5.0
    name: str = ""
    proxy: ProxyConfig = field(default_factory=ProxyConfig)
    waiting: WaitingConfig = field(default_factory=WaitingConfig)
    polling: PollingConfig = field(default_factory=PollingConfig)

    @property
    def body(self) -> BodyLimits:
        """The bounds on a body."""
        return BodyLimits(max_bytes=self.max_body_bytes, timeout_seconds=self.body_timeout_seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What a gateway is given from outside: clocks, who writes statuses, and where its turns begin."""

    clocks: Clocks = field(default_factory=Clocks)
    writer: StatusWriter | None = None
    first_turn: int = 0


CONFIG = web.AppKey("config", ServerConfig)
STATE = web.AppKey("state", ClusterState)
METRICS = web.AppKey("metrics", GatewayMetrics)
AROUND = web.AppKey("around", Surroundings)
TRAFFIC = web.AppKey("traffic", Traffic)
DEMAND = web.AppKey("demand", DemandBook)
LIMITS = web.AppKey("limits", TenantLimits)
BODIES = web.AppKey("bodies", HeldBodies)
WAITING = web.AppKey("waiting", WaitingRoom)
PROXY = web.AppKey("proxy", Proxy)


async def open_parts(app: web.Application) -> AsyncIterator[None]:
    """Make the parts when the application starts, end them when it ends."""
    config, state, metrics, around = app[CONFIG], app[STATE], app[METRICS], app[AROUND]
    clocks = around.clocks
    activator = Activator(
        around.writer, metrics, ActivationHooks(world=lambda: state.world, wall=clocks.wall)
    )
    waiting = app[WAITING] = WaitingRoom(
        config=config.waiting, world=lambda: state.world, activator=activator, demand=app[DEMAND]
    )
    ledger = Ledger(
        clock=clocks.monotonic, suspect_seconds=config.suspect_seconds, first_turn=around.first_turn
    )
    state.subscribe(waiting.on_change)
    state.subscribe(lambda: _forget_what_is_gone(state, ledger, app[LIMITS]))
    async with make_session(config.proxy) as session:
        app[PROXY] = Proxy(
            config=config.proxy,
            session=session,
            ledger=ledger,
            selector=Selector(world=lambda: state.world, ledger=ledger, metrics=metrics),
            waiting=waiting,
            metrics=metrics,
        )
        poller = Poller(
            config=config.polling, session=session, ledger=ledger, replicas=_busy_replicas(app, clocks.wall)
        )
        polling = asyncio.create_task(poller.run())
        yield
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
    await activator.close()


def _forget_what_is_gone(state: ClusterState, ledger: Ledger, limits: TenantLimits) -> None:
    ledger.forget_all_but(state.world.pods.keys())
    limits.forget_all_but(state.world.services.keys())


def _busy_replicas(app: web.Application, wall: Callable[[], float]) -> Callable[[], Iterator[Pod]]:
    """Give what lists the replicas among which there is a choice, of services that were asked for of late."""

    def busy() -> Iterator[Pod]:
        world = app[STATE].world
        for service in world.services.values():
            last = app[DEMAND].of(service.key).last_request_time
            replicas = able(world.replicas(service))
            if last is not None and wall() - last < ACTIVE_SECONDS and len(replicas) > 1:
                yield from replicas

    return busy
