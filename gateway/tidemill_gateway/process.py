"""The gateway's process: start everything, run until a signal, leave without cutting a stream.

Knows the order of start and end. Refuses to know flags, requests and the API's protocol.

At SIGTERM: readiness fails at once; requests are still accepted until none has come for the grace (the news
must reach kube-proxy and ingresses); then the port closes, and streams and requests that wait for a service
have until the timeout to finish.
"""

import asyncio
import logging
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from tidemill_gateway.activation import StatusWriter
from tidemill_gateway.admin import make_admin_app
from tidemill_gateway.api import connect
from tidemill_gateway.metrics import GatewayMetrics
from tidemill_gateway.parts import DEMAND, TRAFFIC, WAITING, ServerConfig, Surroundings
from tidemill_gateway.server import make_app
from tidemill_gateway.state import ClusterState
from tidemill_gateway.watch import ApiReader, Home, Watch, WatchTiming, sources

logger = logging.getLogger(__name__)

FINAL_SECONDS = 1.0
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessConfig:
    """Where the gateway listens, what it watches, how it leaves."""

    host: str
    port: int
    admin_host: str
    admin_port: int
    namespaces: tuple[str, ...] = ()
    home: Home | None = None
    shutdown_grace_seconds: float = 5.0
    shutdown_timeout_seconds: float = 300.0
    server: ServerConfig = field(default_factory=ServerConfig)
    timing: WatchTiming = field(default_factory=WatchTiming)


class ApiClient(ApiReader, StatusWriter, Protocol):
    """What the whole process needs of an API client."""


async def run(config: ProcessConfig) -> int:
    """Run until SIGTERM or SIGINT; return the exit status."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    api = await connect()
    try:
        await serve(config, api, stopping)
    finally:
        await api.close()
    return 0


async def serve(
    config: ProcessConfig,
    api: ApiClient,
    stopping: asyncio.Event,
    *,
    on_started: Callable[[int, int], None] | None = None,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Serve until `stopping` is set, then leave gracefully; `on_started` learns the two ports."""
    watched = sources(config.namespaces, config.home)
    state = ClusterState(source.label for source in watched)
    metrics = GatewayMetrics()
    app = make_app(
        config=config.server,
        state=state,
        metrics=metrics,
        around=Surroundings(
            writer=api,
            first_turn=random.randrange(1 << 16),  # noqa: S311 - so that gateways do not go round in step
        ),
    )
    runner = await start_app(app)
    admin_app = make_admin_app(state=state, traffic=app[TRAFFIC], metrics=metrics, demand=app[DEMAND])
    admin_runner = await start_app(admin_app)
    try:
        async with asyncio.TaskGroup() as tasks:
            watches = [
                tasks.create_task(
                    Watch(source=source, api=api, state=state, metrics=metrics, timing=config.timing).run()
                )
                for source in watched
            ]
            port, site = await listen(runner, config.host, config.port)
            admin_port, _ = await listen(admin_runner, config.admin_host, config.admin_port)
            logger.info("serving on %s:%d, health and metrics on %d", config.host, port, admin_port)
            if on_started is not None:
                on_started(port, admin_port)
            await stopping.wait()
            await _leave(config, site, app, sleep)
            for task in watches:
                task.cancel()
    finally:
        await runner.cleanup()
        await admin_runner.cleanup()


async def start_app(app: web.Application) -> web.AppRunner:
    """Prepare an application to be served; a client that leaves cancels its handler."""
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=FINAL_SECONDS,
        keepalive_timeout=75.0,
    )
    await runner.setup()
    return runner


async def listen(runner: web.AppRunner, host: str, port: int) -> tuple[int, web.TCPSite]:
    """Open a port; return the real one (for 0) and the site."""
    site = web.TCPSite(runner, host, port)
    await site.start()
    number: int = runner.addresses[-1][1]
    return number, site


async def _leave(config: ProcessConfig, site: web.TCPSite, app: web.Application, sleep: Sleep) -> None:
    """Accept until nobody comes any more, let what was accepted finish, and cut the rest.

    Whoever leads clients here may learn late that this pod leaves: an ingress that reloads slowly, or an
    operator that starts anew just then and has not yet written the endpoints. So a grace in which a request
    came is followed by another, for at most half of the time that streams have to finish; a grace of no time
    by none.
    """
    traffic = app[TRAFFIC]
    traffic.is_closing = True
    grace, left = config.shutdown_grace_seconds, config.shutdown_timeout_seconds
    least_left = left / 2
    while True:
        num_begun = traffic.num_begun
        logger.info("leaving: accepting for %g s more", grace)
        await sleep(grace)
        if traffic.num_begun == num_begun or not 0.0 < grace <= left - least_left:
            break
        left -= grace
    await site.stop()
    logger.info("leaving: %d requests have %g s to finish", traffic.in_flight, left)
    try:
        async with asyncio.timeout(left):
            await traffic.wait_until_idle()
    except TimeoutError:
        logger.warning("leaving: cutting %d requests that did not finish", traffic.in_flight)
        app[WAITING].close()
