"""A decision and the load behind it, as `status.scaling`, conditions and the document for KEDA show them.

Pure. Knows fields and units. A figure that nobody read is absent, never zero. Refuses to decide and to know
when something is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidemill_operator.autoscaling.memory import Verdict
from tidemill_operator.autoscaling.model import Decision, FleetLoad, ScalingPolicy
from tidemill_operator.autoscaling.state_json import time_text, to_json, unix_time
from tidemill_operator.fleet.facts import ServiceFacts
from tidemill_operator.situation import SCALING_CONDITIONS, SLO_MET, Condition

Raw = Mapping[str, Any]

MAX_MESSAGE_CHARS: Final = 300
MAX_DETAIL_CHARS: Final = 120
MAX_ENTRIES: Final = 8


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The few numbers of a load that people look at; None where nobody could be asked."""

    kv_cache_use: float | None = None
    queue_length: int | None = None
    num_running: int | None = None
    num_ready: int = 0
    num_starting: int = 0
    num_draining: int = 0
    time_to_first_token_seconds: float | None = None
    inter_token_seconds: float | None = None


def figures_of(load: FleetLoad, decision: Decision) -> Figures:
    """Add up what replicas and gateways said."""
    ready = [replica for replica in load.replicas if replica.is_ready and not replica.is_draining]
    read = [replica.figures for replica in ready if replica.figures is not None]
    demands = [gateway.demand for gateway in load.gateways if gateway.demand is not None]
    total_blocks = sum(figures.total_blocks for figures in read)
    waiting = sum(figures.num_waiting for figures in read) + sum(d.held_requests for d in demands)
    return Figures(
        kv_cache_use=sum(figures.held_blocks for figures in read) / total_blocks if total_blocks else None,
        queue_length=waiting if read or demands else None,
        num_running=sum(figures.num_running for figures in read) if read else None,
        num_ready=len(ready),
        num_starting=sum(replica.is_starting for replica in load.replicas),
        num_draining=sum(replica.is_draining for replica in load.replicas),
        time_to_first_token_seconds=decision.time_to_first_token_seconds,
        inter_token_seconds=decision.inter_token_seconds,
    )


def status_of(decision: Decision, figures: Figures, at: float, first_ready: float | None) -> dict[str, Any]:
    """Write `status.scaling`."""
    status: dict[str, Any] = {
        "desiredReplicas": decision.replicas,
        "unclampedReplicas": decision.unclamped_replicas,
        "reason": decision.reason,
        "message": decision.message[:MAX_MESSAGE_CHARS],
        "updateTime": time_text(round(at)),
        **_shown(figures),
        **to_json(decision.state),
    }
    if decision.terms:
        status["signals"] = [
            {"name": term.signal, "replicas": term.replicas, "message": term.message[:MAX_DETAIL_CHARS]}
            for term in decision.terms[:MAX_ENTRIES]
        ]
    if decision.clamps:
        status["limits"] = [
            {
                "name": clamp.name,
                "from": clamp.before,
                "to": clamp.after,
                "message": clamp.message[:MAX_DETAIL_CHARS],
            }
            for clamp in decision.clamps[:MAX_ENTRIES]
        ]
    if first_ready is not None:
        status["firstReadyTime"] = time_text(first_ready)
    return status


def conditions_of(decision: Decision) -> tuple[Condition, ...]:
    """Write what a decision finds of the conditions that are the autoscaler's."""
    return tuple(
        Condition(
            type=finding.condition,
            is_true=finding.status == "True",
            is_unknown=finding.status == "Unknown",
            reason=finding.reason,
            message=finding.message[:MAX_MESSAGE_CHARS],
        )
        for finding in decision.findings
    )


def previous_conditions(status: Raw) -> tuple[Condition, ...]:
    """Read the autoscaler's conditions back from status, so that a restart changes none before it decides."""
    return tuple(
        Condition(
            type=str(found["type"]),
            is_true=found.get("status") == "True",
            is_unknown=found.get("status") == "Unknown",
            reason=str(found.get("reason") or "Unknown"),
            message=str(found.get("message") or ""),
        )
        for found in status.get("conditions") or ()
        if found.get("type") in SCALING_CONDITIONS
    )


def previous_verdict(status: Raw, facts: ServiceFacts) -> Verdict | None:
    """Read back what SLOMet said and stood on at the last write; None where the spec has changed since."""
    written = unix_time((status.get("scaling") or {}).get("updateTime"))
    for found in status.get("conditions") or ():
        is_same_spec = found.get("observedGeneration", 0) == facts.generation
        if found.get("type") == SLO_MET and is_same_spec and written is not None:
            state = found.get("status")
            return Verdict(
                status=state if state in ("True", "False") else "Unknown",
                reason=str(found.get("reason") or "Unknown"),
                agreed_at=written,
                slo=facts.policy.slo,
            )
    return None


def document_of(policy: ScalingPolicy, decision: Decision, figures: Figures, at: float) -> dict[str, Any]:
    """Write the figures for those who keep KEDA or an HPA: one flat object, whole numbers and fractions."""
    target = policy.queue_length_per_replica
    document: dict[str, Any] = {
        "time": time_text(round(at)),
        "mode": policy.mode,
        "desiredReplicas": decision.replicas,
        "unclampedReplicas": decision.unclamped_replicas,
        "reason": decision.reason,
        "message": decision.message,
        "minReplicas": policy.min_replicas,
        "maxReplicas": policy.max_replicas,
        "readyReplicas": figures.num_ready,
        "startingReplicas": figures.num_starting,
        "drainingReplicas": figures.num_draining,
        "kvCacheTargetPercent": round(policy.kv_cache_target * 100),
        "queueLengthTargetPerReplica": round(target),
        **_shown(figures),
    }
    if figures.num_running is not None:
        document["runningRequests"] = figures.num_running
    return document | {"signals": {term.signal: term.replicas for term in decision.terms}}


def _shown(figures: Figures) -> dict[str, int]:
    shown: dict[str, tuple[float | None, int]] = {
        "kvCacheUtilizationPercent": (figures.kv_cache_use, 100),
        "queueLength": (figures.queue_length, 1),
        "timeToFirstTokenMilliseconds": (figures.time_to_first_token_seconds, 1000),
        "interTokenLatencyMilliseconds": (figures.inter_token_seconds, 1000),
    }
    return {name: round(value * factor) for name, (value, factor) in shown.items() if value is not None}
