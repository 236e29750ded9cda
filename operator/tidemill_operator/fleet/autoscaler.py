"""Runs one task per service that scales: ask, decide, and ask for a reconcile when the outcome is news.

Knows when to do what. Refuses to decide (`autoscaling`), to judge what is news (`keeper.py`) and to write:
the reconciler fetches the latest view of a service and `plan.py` alone writes replicas.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidemill_operator import metrics
from tidemill_operator.api import Object
from tidemill_operator.clock import Clock
from tidemill_operator.cluster import Reading
from tidemill_operator.errors import InvalidSpec
from tidemill_operator.fleet.exported import DrainTimes, row_of
from tidemill_operator.fleet.facts import ServiceFacts, facts_of
from tidemill_operator.fleet.keeper import Decide, Keeper
from tidemill_operator.fleet.recording import Recordings
from tidemill_operator.fleet.scraper import EngineTarget, GatewayAnswer, GatewayTarget, Scraper
from tidemill_operator.keys import Key
from tidemill_operator.observed import GatewayView
from tidemill_operator.scaling_view import ScalingView
from tidemill_operator.spec import parse

logger = logging.getLogger(__name__)

Raw = Mapping[str, Any]

GATEWAY_ANSWER_SECONDS: Final = 0.5
"""For how long one answer of a gateway, which is about all services, serves them all."""


@dataclass(kw_only=True)
class _Running:
    """One service's keeper and its task."""

    keeper: Keeper
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Autoscaler:
    """All services that scale."""

    def __init__(
        self,
        *,
        scraper: Scraper,
        decide: Decide,
        ask_reconcile: Callable[[Key], None],
        clock: Clock,
        recordings: Recordings | None = None,
    ) -> None:
        self._scraper = scraper
        self._decide = decide
        self._ask_reconcile = ask_reconcile
        self._clock = clock
        self._running: dict[Key, _Running] = {}
        self._recordings = recordings if recordings is not None else Recordings(0)
        self._drains = DrainTimes()
        self._gateways = _GatewayPoll(scraper, clock)

    def look(self, service: Object, reading: Reading) -> ScalingView | None:
        """Take in what a reconcile has read, and give what is decided; None for one that does not scale."""
        key = Key(service["metadata"]["namespace"], service["metadata"]["name"])
        try:
            spec = parse(service)
        except InvalidSpec:
            running = self._running.get(key)
            return running.keeper.view if running is not None else None
        now, observed = self._now(), reading.observed
        self._drains.note(key, observed.pods, spec.drain_timeout_seconds, now)
        if spec.scaling is None:
            self._stop(key)
            return None
        facts = facts_of(service, spec, spec.scaling, observed, reading.admin_tokens)
        running = self._running.get(key)
        if running is not None and running.keeper.facts.uid != facts.uid:
            self._stop(key)
            self._recordings.forget(key)
            running = None
        if running is None:
            running = self._start(key, facts, service.get("status") or {})
        elif running.keeper.look(facts, now):
            running.wake.set()
        if facts.is_suspended:
            running.keeper.suspend()
        return running.keeper.view

    def forget(self, key: Key) -> None:
        """Drop everything about a service that is gone."""
        self._stop(key)
        self._drains.forget(key)
        self._recordings.forget(key)

    def document(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Give the latest figures of one service as JSON; None while there are none."""
        running = self._running.get(Key(namespace, name))
        return running.keeper.document if running is not None else None

    def recording(self, namespace: str, name: str) -> Iterator[bytes] | None:
        """Give the last hours' loads of one service for `tidemill-bench replay`; None if there are none."""
        key = Key(namespace, name)
        running = self._running.get(key)
        return self._recordings.parts(key, running.keeper.facts.scaling) if running is not None else None

    def rows(self) -> Iterable[metrics.ServiceRow]:
        """Give what is exported as metrics."""
        now = self._now()
        for key in sorted({*self._running, *self._drains.keys}):
            running = self._running.get(key)
            yield row_of(key, running.keeper if running else None, self._drains.of(key, now))

    async def close(self) -> None:
        """End all tasks and connections."""
        tasks = [running.task for running in self._running.values() if running.task is not None]
        for key in list(self._running):
            self._stop(key)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._scraper.close()

    def _start(self, key: Key, facts: ServiceFacts, status: Raw) -> _Running:
        keeper = Keeper(facts, status, self._decide)
        keeper.look(facts, self._now())
        running = self._running[key] = _Running(keeper=keeper)
        running.task = asyncio.create_task(self._serve(key, running), name=f"autoscale {key}")
        return running

    def _stop(self, key: Key) -> None:
        running = self._running.pop(key, None)
        if running is not None and running.task is not None:
            running.task.cancel()

    async def _serve(self, key: Key, running: _Running) -> None:
        """Decide again and again, each service at its own moment of the interval."""
        keeper = running.keeper
        pause = 0.0
        while True:
            await self._wait(running, pause)
            interval = keeper.facts.policy.interval_seconds
            pause = interval * random.uniform(0.9, 1.1)  # noqa: S311 - spreads the load, guards nothing
            if keeper.facts.is_suspended:
                continue
            try:
                await self._ask(keeper)
                before = keeper.view.desired
                is_news = keeper.decide(self._now())
            except Exception:
                logger.exception("%s: the autoscaler failed and holds until its next turn", key)
                continue
            if keeper.load is not None:
                self._recordings.note(key, keeper.load)
            decision = keeper.decision
            if decision is not None:
                pause = min(pause, max(0.2, decision.retry_after_seconds))
            if is_news:
                self._tell(key, before, keeper)

    def _tell(self, key: Key, before: int | None, keeper: Keeper) -> None:
        decision = keeper.decision
        if decision is not None and decision.replicas != before:
            logger.info(
                "%s: %s replicas instead of %s: %s: %s",
                key,
                decision.replicas,
                before,
                decision.reason,
                decision.message,
            )
            if before is not None and keeper.facts.policy.mode == "Auto":
                direction = "up" if decision.replicas > before else "down"
                metrics.SCALE_EVENTS.labels(direction).inc()
        self._ask_reconcile(key)

    async def _ask(self, keeper: Keeper) -> None:
        """Ask all engines and gateways of a service at once."""
        facts = keeper.facts
        targets = [
            EngineTarget(uid=pod.uid, name=pod.name, ip=pod.ip, tokens=facts.admin_tokens)
            for pod in facts.askable_pods
        ]
        engines = asyncio.gather(*(self._scraper.engine(target) for target in targets))
        answers, demand = await asyncio.gather(engines, self._gateways.ask(facts.gateways))
        for target, answer in zip(targets, answers, strict=True):
            keeper.take_engine(target.uid, answer)
        keeper.take_gateways(demand)

    async def _wait(self, running: _Running, seconds: float) -> None:
        """Wait for so long, or until the service's turn comes early."""
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        woken = asyncio.ensure_future(running.wake.wait())
        try:
            await asyncio.wait((sleeping, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            running.wake.clear()
            # Not awaited: whoever suppresses their CancelledError may swallow that of this very task.
            sleeping.cancel()
            woken.cancel()

    def _now(self) -> float:
        return self._clock.now().timestamp()


class _GatewayPoll:
    """Asks each gateway once for all services that want to know at about the same time."""

    def __init__(self, scraper: Scraper, clock: Clock) -> None:
        self._scraper = scraper
        self._clock = clock
        self._asked: dict[GatewayView, tuple[float, asyncio.Task[GatewayAnswer]]] = {}

    async def ask(self, gateways: Iterable[GatewayView]) -> dict[str, GatewayAnswer]:
        """Give every gateway's answer, at most half a second old."""
        wanted = list(gateways)
        tasks = [self._task(view) for view in wanted]
        answers = await asyncio.gather(*(asyncio.shield(task) for task in tasks))
        return {view.name: answer for view, answer in zip(wanted, answers, strict=True)}

    def _task(self, view: GatewayView) -> asyncio.Task[GatewayAnswer]:
        now = self._clock.monotonic()
        known = self._asked.get(view)
        if known is not None and (now - known[0] < GATEWAY_ANSWER_SECONDS or not known[1].done()):
            return known[1]
        self._asked = {v: asked for v, asked in self._asked.items() if now - asked[0] < 60 or v == view}
        target = GatewayTarget(name=view.name, ip=view.ip)
        task = asyncio.create_task(self._scraper.gateway(target), name=f"demand {view.name}")
        self._asked[view] = (now, task)
        return task
