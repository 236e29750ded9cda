"""One run over one InferenceService: read, plan, execute, write status.

Knows the order and what a refused write means. Refuses to decide (plan.py) and to talk HTTP (api.py). A run
that is killed at any point leaves nothing that the next run would not finish.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Protocol

from tidemill_operator import metrics
from tidemill_operator import status as status_module
from tidemill_operator.announcements import cut_event
from tidemill_operator.api import Object
from tidemill_operator.claims import Claims
from tidemill_operator.cluster import Cluster, Reading
from tidemill_operator.errors import ApiError, ObstacleError
from tidemill_operator.keys import Key
from tidemill_operator.last_words import CutStreams
from tidemill_operator.manifests import PodSettings
from tidemill_operator.model_plan import INVALID_TEMPLATE, WRITE_FAILED
from tidemill_operator.observed import Observed, Refusal
from tidemill_operator.plan import Plan, make_plan
from tidemill_operator.pod_changes import PodChanger
from tidemill_operator.queue import Again, Outcome
from tidemill_operator.recorder import Recorder, identity_of_gone
from tidemill_operator.scaling_view import ScalingView

logger = logging.getLogger(__name__)

AFTER_CONFLICT_SECONDS: Final = 0.2
# An engine did not take a word that nobody but us will give it.
AFTER_SILENCE_SECONDS: Final = 1.0
# With the queue's growing pauses this takes some eight seconds.
NUM_LASTING_FAULTS: Final = 5


class Scaling(Protocol):
    """What a run needs of the autoscaler."""

    def look(self, service: Object, reading: Reading) -> ScalingView | None:
        """Take in what was read of a service and give what is decided; None for one that does not scale."""
        ...

    def forget(self, key: Key) -> None:
        """Drop everything about a service that is gone."""
        ...


class NoScaling:
    """No autoscaler: a service that scales by itself is held where it is."""

    def look(self, _service: Object, _reading: Reading) -> ScalingView | None:
        """Decide nothing."""
        return None

    def forget(self, key: Key) -> None:
        """Know nothing to drop."""


def _nothing_cut(_: Key) -> tuple[CutStreams, ...]:
    """Say that no stream was cut."""
    return ()


def _everybody_is_let_in(_: Key) -> str:
    """Say that no API keys are lacking."""
    return ""


def _nobody_waits(_: Key, __: str) -> None:
    """Tell nobody that a service gives up its names."""


@dataclass(frozen=True, kw_only=True)
class Reconciler:
    """Everything that a run needs, once for all runs."""

    cluster: Cluster
    recorder: Recorder
    claims: Claims
    engine_image: str
    now: Callable[[], datetime]
    pods: PodChanger
    cuts_of: Callable[[Key], tuple[CutStreams, ...]] = _nothing_cut
    keys_problem_of: Callable[[Key], str] = _everybody_is_let_in
    on_leaving: Callable[[Key, str], object] = _nobody_waits
    scaling: Scaling = field(default_factory=NoScaling)
    settings: PodSettings = field(default_factory=PodSettings)
    server_faults: Counter[Key] = field(default_factory=Counter)

    async def run(self, key: Key) -> Outcome | Again:
        """Bring one service closer to its spec; raise what should be tried again later."""
        service = await self.cluster.read_service(key)
        if service is None:
            return await self._forget(key)
        uid = service["metadata"]["uid"]
        if service["metadata"].get("deletionTimestamp"):
            self.on_leaving(key, uid)
            await self._tell_cuts(key, service)
            return Outcome.DONE
        reading = await self._observe(key, service)
        scaling = self.scaling.look(service, reading)
        observed, plan = await self._plan_knowing(service, reading, scaling)
        if observed.namespace_is_leaving:
            self.on_leaving(key, uid)
        reason = INVALID_TEMPLATE
        try:
            await self.cluster.check(plan)
            reason = "WriteRefused"
            is_complete = await self.pods.carry_out(key.namespace, plan.pods, reading.admin_tokens)
            await self.cluster.execute(key, plan, reading.versions)
        except ApiError as error:
            if error.is_conflict and plan.lowered:
                logger.info("%s: a Deployment has changed since it was read; looking again", key)
                return Again(seconds=AFTER_CONFLICT_SECONDS)
            refusal = self._refusal(key, error, reason)
            if refusal is not None:
                observed = replace(observed, refusal=refusal)
                await self._tell(service, self._plan(service, observed, scaling))
                if observed.namespace_is_leaving:
                    self.on_leaving(key, uid)
            raise
        self.server_faults.pop(key, None)
        await self._tell(service, plan)
        await self._tell_cuts(key, service)
        if plan.obstacle is not None:
            raise ObstacleError(plan.obstacle.message)
        again_seconds = plan.again_seconds if is_complete else AFTER_SILENCE_SECONDS
        return Outcome.DONE if again_seconds is None else Again(seconds=again_seconds)

    async def _forget(self, key: Key) -> Outcome:
        """Drop everything about a service that is gone, once its cut streams are told."""
        await self._tell_cuts(key, identity_of_gone(key))
        self.cluster.forget(key)
        self.scaling.forget(key)
        self.server_faults.pop(key, None)
        logger.info("%s is gone; its children go with it", key)
        return Outcome.GONE

    async def _observe(self, key: Key, service: Object) -> Reading:
        """Read what is around a service, and add what no object of the cluster says."""
        reading = await self.cluster.observe(service)
        observed = replace(
            reading.observed,
            lost_claims=self.claims.lost(key),
            keys_problem=self.keys_problem_of(key),
            is_refused_all=reading.observed.has_leaving_pods and await self.cluster.is_refused_all(key),
        )
        return replace(reading, observed=observed)

    def _refusal(self, key: Key, error: ApiError, reason: str) -> Refusal | None:
        """Make of an error what status tells of it; None while it may pass by itself."""
        if error.is_refusal:
            return Refusal(what=error.request, message=error.message, reason=reason)
        if self._is_lasting(key, error):
            return Refusal(what=error.request, message=error.message, reason=WRITE_FAILED)
        return None

    def _is_lasting(self, key: Key, error: ApiError) -> bool:
        """Count the API server's own faults in a row; tell whether they are worth telling."""
        if error.status >= 500:
            self.server_faults[key] += 1
        return error.status >= 500 and self.server_faults[key] >= NUM_LASTING_FAULTS

    async def _plan_knowing(
        self, service: Object, reading: Reading, scaling: ScalingView | None
    ) -> tuple[Observed, Plan]:
        """Plan, and again with what a plan must know and no watch tells: names taken, engines' load."""
        observed = reading.observed
        plan = self._plan(service, observed, scaling)
        found = await self.cluster.look_up(service, plan, reading.versions)
        if found:
            observed = replace(observed, children=(*observed.children, *found))
            plan = self._plan(service, observed, scaling)
        if plan.asks_progress:
            progress = await self.pods.read_progress(plan.asks_progress, reading.admin_tokens)
            observed = replace(observed, progress=progress)
            plan = self._plan(service, observed, scaling)
        if plan.asks:
            observed = replace(observed, loads=await self.pods.read(plan.asks, reading.admin_tokens))
            plan = self._plan(service, observed, scaling)
        return observed, plan

    def _plan(self, service: Object, observed: Observed, scaling: ScalingView | None) -> Plan:
        now = self.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        return make_plan(service, observed, self.engine_image, now, scaling, self.settings)

    async def _tell_cuts(self, key: Key, service: Object) -> None:
        """Tell of streams that were cut with replicas that someone else has sent away."""
        for cut in self.cuts_of(key):
            await self.recorder.record(service, cut_event(cut))

    async def _tell(self, service: Object, plan: Plan) -> None:
        """Write status when it says something new, then the events."""
        if not status_module.is_same(service.get("status"), plan.status):
            await self.cluster.write_status(service, plan.status)
            metrics.STATUS_WRITES.inc()
        for event in plan.events:
            await self.recorder.record(service, event)
