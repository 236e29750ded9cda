"""The running operator: health port, election, watches and work queue, started and ended in the right order.

Knows which part needs which. Refuses to read flags or environment; `__main__` does.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web
from kubernetes.aio.client.api_client import ApiClient

from tidemill_operator import metrics, names
from tidemill_operator.api import Api, Object, Place, load_configuration
from tidemill_operator.autoscaling.decide import desired_replicas
from tidemill_operator.cache import GATEWAYS, Cache
from tidemill_operator.claims import Claims
from tidemill_operator.clock import SystemClock
from tidemill_operator.cluster import Cluster
from tidemill_operator.engine_admin import EngineAdmin, make_session
from tidemill_operator.errors import ApiError, OperatorError
from tidemill_operator.fleet.autoscaler import Autoscaler
from tidemill_operator.fleet.http import add_scaling_routes
from tidemill_operator.fleet.recording import Recordings
from tidemill_operator.fleet.scraper import Scraper
from tidemill_operator.health import Health, make_app
from tidemill_operator.informer import Informer
from tidemill_operator.key_projector import KeyProjector
from tidemill_operator.keys import Key
from tidemill_operator.last_words import LastWords
from tidemill_operator.leader import LeaderElector, LeadershipLostError, LeaseTiming
from tidemill_operator.manifests import PodSettings
from tidemill_operator.pod_changes import PodChanger
from tidemill_operator.queue import Again, Outcome, Pace, WorkQueue
from tidemill_operator.reconcile import Reconciler
from tidemill_operator.recorder import Recorder
from tidemill_operator.secret_watch import SecretWatch
from tidemill_operator.watches import EventRouter, Scope, run_watches

logger = logging.getLogger(__name__)

MAX_RUN_SECONDS: Final = 180.0
STOP_SECONDS: Final = 3.0
RETRY_SECONDS: Final = 2.0
MAX_RETRY_SECONDS: Final = 30.0
EXIT_LEADERSHIP_LOST: Final = 3


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that flags and environment decide."""

    engine_image: str
    operator_namespace: str
    identity: str
    gateway_selector: str = names.DEFAULT_GATEWAY_SELECTOR
    keys_secret: str = names.GATEWAY_KEYS_SECRET
    lease_name: str = names.DEFAULT_LEASE_NAME
    lease_timing: LeaseTiming = field(default_factory=LeaseTiming)
    http_host: str = "0.0.0.0"  # noqa: S104 - probes and Prometheus come from outside the pod
    http_port: int = names.OPERATOR_HTTP_PORT
    watch_namespaces: tuple[str, ...] = ()
    recording_bytes: int = 0
    pace: Pace = field(default_factory=Pace)
    pods: PodSettings = field(default_factory=PodSettings)


class Operator:
    """One operator process."""

    def __init__(self, settings: Settings, api: Api, engines: EngineAdmin) -> None:
        self._settings = settings
        self._api = api
        self._clock = SystemClock()
        self._claims = Claims()
        self._cache = Cache()
        self._last_words = LastWords()
        self._cluster = Cluster(api, self._cache, self._on_rotation)
        self._recorder = Recorder(api, settings.identity, self._clock.monotonic)
        self._queue = WorkQueue(self._run, self._clock, settings.pace)
        self._autoscaler = Autoscaler(
            scraper=Scraper(),
            decide=desired_replicas,
            ask_reconcile=self._queue.add,
            clock=self._clock,
            recordings=Recordings(settings.recording_bytes),
        )
        metrics.FLEET.rows = self._autoscaler.rows
        keys_place = Place(kind="Secret", namespace=settings.operator_namespace, name=settings.keys_secret)
        self._projector = KeyProjector(api, keys_place, self._recorder.warn_of_keys, self._queue.add)
        self._reconciler = Reconciler(
            cluster=self._cluster,
            recorder=self._recorder,
            claims=self._claims,
            engine_image=settings.engine_image,
            now=self._clock.now,
            on_leaving=self._on_leaving,
            scaling=self._autoscaler,
            pods=PodChanger(self._cluster, engines),
            settings=settings.pods,
            cuts_of=self._last_words.take,
            keys_problem_of=self._projector.problem_of,
        )
        lease = Place(kind="Lease", namespace=settings.operator_namespace, name=settings.lease_name)
        self._elector = LeaderElector(api, lease, settings.identity, self._clock, settings.lease_timing)
        self._stop = asyncio.Event()
        self._scope = Scope(
            operator_namespace=settings.operator_namespace,
            gateway_selector=settings.gateway_selector,
            namespaces=settings.watch_namespaces,
        )
        self._router = EventRouter(self._queue.add, self._claims, self._scope, self._projector.note)
        self._is_caught_up = False

    async def run(self) -> None:
        """Serve health, wait for the lease, act, and end when told to."""
        self._catch_signals()
        runner = await self._serve_health()
        try:
            if await self._until_stopped(self._elector.acquire()):
                return
            await self._act()
        finally:
            await self._queue.close()
            await self._autoscaler.close()
            await self._elector.release()
            await runner.cleanup()

    async def _act(self) -> None:
        """Watch and work as the leader until stopped; end the process at once if the lease is lost."""
        background = [asyncio.create_task(self._hold(), name="lease")]
        try:
            await self._until_stopped(self._work(background))
        finally:
            for task in background:
                task.cancel()
            await asyncio.wait(background, timeout=STOP_SECONDS)

    async def _work(self, background: list[asyncio.Task[None]]) -> None:
        """Wait for the resource to exist, learn what there is, then watch the services for ever."""
        await self._until_resource_is_served()
        informers = [
            Informer(self._api, source, self._cache, self._on_change, self._clock)
            for source in self._scope.sources()
        ]
        background += [asyncio.create_task(informer.run()) for informer in informers]
        for informer in informers:
            await informer.synced.wait()
        logger.info("%d children and gateways are known", len(self._cache))
        self._is_caught_up = True
        secrets = SecretWatch(
            self._api, lambda: self._cluster.admin_secrets.known, self._on_secret, self._clock
        )
        background.append(asyncio.create_task(secrets.run()))
        background.append(asyncio.create_task(self._projector.run()))
        await self._watch_services()

    async def _until_resource_is_served(self) -> None:
        """Wait for the CustomResourceDefinition, which may be installed after the operator."""
        pause = RETRY_SECONDS
        while True:
            try:
                if await self._api.is_served(names.API_VERSION, names.PLURAL):
                    return
                logger.warning("the API server does not know %s.%s yet: waiting", names.PLURAL, names.GROUP)
            except ApiError as error:
                logger.warning("cannot ask for the resources of %s: %s", names.API_VERSION, error)
            await self._clock.sleep(pause)
            pause = min(MAX_RETRY_SECONDS, pause * 1.5)

    async def _watch_services(self) -> None:
        """Keep kopf watching; what makes it give up is waited out and begun anew."""
        pause = RETRY_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            # Kopf puts its own signal handlers in place when it starts; ours end things in the right order.
            watching = run_watches(
                self._router, self._scope, on_started=lambda: loop.call_soon(self._catch_signals)
            )
            began_at = self._clock.monotonic()
            try:
                await watching
                logger.warning("the watch of the services ended by itself; it begins anew")
            except Exception:
                logger.exception("the watch of the services failed; it begins anew")
            metrics.WATCH_RESTARTS.labels(names.KIND, "error").inc()
            lasted = self._clock.monotonic() - began_at
            pause = RETRY_SECONDS if lasted > MAX_RETRY_SECONDS else min(MAX_RETRY_SECONDS, pause * 1.5)
            await self._clock.sleep(pause)

    def _on_change(self, shelf: str, obj: Object) -> None:
        if shelf == GATEWAYS:
            self._router.on_gateways(self._cache.all(GATEWAYS))
        else:
            self._last_words.note_owner(shelf, obj)
            if shelf == "Pod":
                # A service that was deleted is not looked at any more, but for this.
                told_of = self._last_words.note(obj)
                if told_of is not None:
                    self._queue.add(told_of)
            self._router.on_child(obj)

    def _on_secret(self, key: Key) -> None:
        self._cluster.admin_secrets.look_again(key)
        self._queue.add(key)

    def _on_rotation(self) -> None:
        self._projector.go_round()

    def _on_leaving(self, key: Key, uid: str) -> None:
        self._router.on_leaving(key, uid)

    async def _hold(self) -> None:
        try:
            await self._elector.hold()
        except LeadershipLostError as error:
            logger.critical("leadership is lost, ending at once: %s", error)
        except Exception:
            logger.critical("the election failed, ending at once", exc_info=True)
        logging.shutdown()
        os._exit(EXIT_LEADERSHIP_LOST)

    async def _run(self, key: Key) -> Outcome | Again:
        if not self._elector.is_leader:
            raise OperatorError("this process does not hold the lease and must not act")
        if not self._is_caught_up:
            # An ending pod may ask for a run while its Deployment is not known yet.
            return Again(seconds=RETRY_SECONDS)
        outcome = await self._reconciler.run(key)
        if outcome is Outcome.GONE:
            self._router.on_gone(key)
        return outcome

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run something until it ends, or until the process is told to stop; True when it was."""
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self._wait_for_stop())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return False
            return True
        finally:
            for task in (working, stopping):
                task.cancel()
            await asyncio.wait((working, stopping), timeout=STOP_SECONDS)

    async def _wait_for_stop(self) -> None:
        await self._stop.wait()

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._stop.set)

    async def _leader_url(self) -> str | None:
        """Give the address of the operator that acts; None where it is this one or nobody is known."""
        if self._elector.is_leader or not self._elector.holder:
            return None
        pod = self._elector.holder.rpartition("_")[0]
        place = Place(kind="Pod", namespace=self._settings.operator_namespace, name=pod)
        try:
            found = await self._api.get(place)
        except ApiError as error:
            logger.warning("cannot find the operator that acts: %s", error)
            return None
        ip = ((found or {}).get("status") or {}).get("podIP")
        return f"http://{ip}:{self._settings.http_port}" if ip else None

    async def _serve_health(self) -> web.AppRunner:
        health = Health(
            is_live=lambda: self._queue.longest_run_seconds() < MAX_RUN_SECONDS,
            is_ready=lambda: self._is_caught_up or not self._elector.is_leader,
        )
        app = make_app(health)
        add_scaling_routes(app, self._autoscaler, self._leader_url)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, self._settings.http_host, self._settings.http_port).start()
        return runner


async def run_operator(settings: Settings) -> None:
    """Run one operator until it is told to stop."""
    api = Api(ApiClient(configuration=await load_configuration()))
    try:
        async with make_session() as session:
            await Operator(settings, api, EngineAdmin(session)).run()
    finally:
        await api.close()
