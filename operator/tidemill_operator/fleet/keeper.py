"""The autoscaler of one service: what it knows, when it decides, and when that is worth a write.

Knows the memory between decisions and the rule that status is written when a decision changes, else at most
every 30 s. Refuses to talk to anybody (figures are handed in) and to write (a `ScalingView` is handed out).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from tidemill_operator.autoscaling.memory import Memory
from tidemill_operator.autoscaling.model import Decision, FleetLoad, ScalingPolicy, ScalingState
from tidemill_operator.autoscaling.state_json import from_json, time_text, unix_time
from tidemill_operator.fleet.facts import KnownDemand, KnownFigures, ServiceFacts, fleet_load
from tidemill_operator.fleet.scraper import EngineAnswer, GatewayAnswer
from tidemill_operator.fleet.summary import (
    Figures,
    conditions_of,
    document_of,
    figures_of,
    previous_conditions,
    previous_verdict,
    status_of,
)
from tidemill_operator.scaling_view import ScalingView
from tidemill_operator.situation import ABLE_TO_SCALE, Condition

Raw = Mapping[str, Any]
Decide = Callable[[FleetLoad, ScalingPolicy, ScalingState, float], Decision]

REWRITE_SECONDS: Final = 30.0
RENEW_SECONDS: Final = 300.0
"""How old what only a restart needs may become while nothing else changes."""
_PASSING: Final = frozenset(
    {"updateTime", "lastReadyTime", "lastRequestTime", "recommendations", "scaleUpRecommendations"}
)


class Keeper:
    """One service's autoscaler between two looks at the world."""

    def __init__(self, facts: ServiceFacts, status: Raw, decide: Decide) -> None:
        scaling = status.get("scaling") or {}
        self.facts = facts
        self.decision: Decision | None = None
        self.load: FleetLoad | None = None
        self.figures = Figures()
        self.document: dict[str, Any] | None = None
        self._decide = decide
        self._state = replace(from_json(scaling), memory=Memory(verdict=previous_verdict(status, facts)))
        self._engines: dict[str, KnownFigures] = {}
        self._gateways: dict[str, KnownDemand] = {}
        self._first_ready = unix_time(scaling.get("firstReadyTime"))
        self._last_ready = unix_time(scaling.get("lastReadyTime"))
        self._published_at: float | None = None
        self._published = ScalingView(
            status=scaling,
            conditions=previous_conditions(status),
            cold_start_seconds=self._state.learned.startup_seconds,
        )

    @property
    def view(self) -> ScalingView:
        """Give what the plan may know: the same until something is worth a write."""
        return self._published

    def look(self, facts: ServiceFacts, now: float) -> bool:
        """Take in a newer look at the service; tell whether a decision should not wait for its turn."""
        before, self.facts = self.facts, facts
        kept = {pod.uid for pod in facts.pods}
        self._engines = {uid: known for uid, known in self._engines.items() if uid in kept}
        self._note_readiness(now)
        is_woken = facts.activation_request_time != before.activation_request_time
        return is_woken or facts.policy != before.policy or facts.is_suspended != before.is_suspended

    def take_engine(self, uid: str, answer: EngineAnswer) -> None:
        """Take in what an engine said; figures stay known until they are too old."""
        if answer.figures is not None:
            self._engines[uid] = KnownFigures(figures=answer.figures, missing_reason="")
        else:
            known = self._engines.get(uid, KnownFigures())
            self._engines[uid] = replace(known, missing_reason=answer.missing_reason)

    def take_gateways(self, answers: Mapping[str, GatewayAnswer]) -> None:
        """Take in what the gateways said; one that is gone is forgotten."""
        taken: dict[str, KnownDemand] = {}
        for name, answer in answers.items():
            known = self._gateways.get(name, KnownDemand())
            if answer.services is None:
                taken[name] = replace(known, missing_reason=answer.missing_reason)
                continue
            demand = answer.services.get(str(self.facts.key))
            reason = "" if demand else "the gateway does not know the service yet"
            taken[name] = KnownDemand(started=answer.started, demand=demand, missing_reason=reason)
        self._gateways = taken

    def decide(self, now: float) -> bool:
        """Decide by what is known now; tell whether the outcome is worth a write."""
        self._note_readiness(now)
        load = self.load = fleet_load(
            self.facts,
            self._engines,
            self._gateways,
            has_been_ready=self._first_ready is not None,
            at=now,
            decided=self._published.desired,
        )
        decision = self._decide(load, self.facts.policy, self._state, now)
        self.decision = self._without_repetition(decision)
        self._state = self.decision.state
        self.figures = figures_of(load, self.decision)
        self.document = document_of(self.facts.policy, self.decision, self.figures, now)
        view = self._view_of(self.decision, now)
        if not self._is_news(view, now):
            return False
        self._published, self._published_at = view, now
        return True

    def suspend(self) -> bool:
        """Decide nothing while the service is suspended; tell whether that is news."""
        if self.decision is None and not self._published.conditions:
            return False
        self.decision, self.document = None, None
        self._published = replace(self._published, desired=None, conditions=())
        self._published_at = None
        return True

    def _without_repetition(self, decision: Decision) -> Decision:
        """Count a change once, though it is decided again until the cluster has followed it."""
        if self.decision is None or decision.replicas != self.decision.replicas:
            return decision
        state = replace(
            decision.state,
            history=self._state.history,
            changes=self._state.changes,
            last_scale_time=self._state.last_scale_time,
        )
        return replace(decision, state=state)

    def _note_readiness(self, now: float) -> None:
        ready = self.facts.ready_pods
        if ready:
            self._last_ready = now
            self._first_ready = self._first_ready if self._first_ready is not None else now

    def _view_of(self, decision: Decision, now: float) -> ScalingView:
        status = status_of(decision, self.figures, now, self._first_ready)
        if self._last_ready is not None:
            status["lastReadyTime"] = time_text(round(self._last_ready))
        return ScalingView(
            desired=decision.replicas,
            status=status,
            conditions=tuple(c for c in conditions_of(decision) if _overrides(c)),
            activation_failure=self._activation_failure(now),
            cold_start_seconds=decision.state.learned.startup_seconds,
        )

    def _activation_failure(self, now: float) -> str:
        """Say that a wish to wake the service was not followed by a ready replica in time."""
        asked, to_zero = self.facts.activation_request_time, self.facts.policy.scale_to_zero
        if asked is None or to_zero is None or now - asked < to_zero.activation_timeout_seconds:
            return ""
        if self._last_ready is not None and self._last_ready >= asked:
            return ""
        return (
            f"requests asked for the service at {time_text(round(asked))} and no replica was ready within "
            f"{to_zero.activation_timeout_seconds:.0f} s; see status.model.lastFailure and the pods' events"
        )

    def _is_news(self, view: ScalingView, now: float) -> bool:
        before = self._published
        if self._published_at is None or _essence(view) != _essence(before):
            return True
        age = now - self._published_at
        return age >= RENEW_SECONDS or (age >= REWRITE_SECONDS and _lasting(view) != _lasting(before))


def _overrides(condition: Condition) -> bool:
    """Leave AbleToScale to the plan, which knows rollouts and refusals, unless the decision objects."""
    return condition.type != ABLE_TO_SCALE or not condition.is_true


def _essence(view: ScalingView) -> tuple[Any, ...]:
    """Reduce a view to what nobody should wait for: number, truths, the first Ready."""
    found = tuple((c.type, c.status) for c in view.conditions)
    return view.desired, found, bool(view.activation_failure), "firstReadyTime" in view.status


def _lasting(view: ScalingView) -> tuple[Any, ...]:
    """Reduce a view to what does not change by time alone."""
    status = {name: value for name, value in view.status.items() if name not in _PASSING}
    return status, view.conditions, view.activation_failure, view.cold_start_seconds
