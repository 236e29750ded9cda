"""What the autoscaler would have done with a recorded load, and why: a table of its decisions.

The load is what it was: a decision other than the one that was taken changes nothing of what follows, so the
further they part, the less the rest says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise

from tidemill_operator.autoscaling.decide import desired_replicas
from tidemill_operator.autoscaling.load_json import Recording
from tidemill_operator.autoscaling.model import Decision, ScalingPolicy, ScalingState


@dataclass(frozen=True, kw_only=True)
class Step:
    """One decision beside what there was."""

    at: float
    current: int
    decision: Decision


def replay(recording: Recording, policy: ScalingPolicy) -> list[Step]:
    """Decide for every load of a recording, each decision remembering those before it."""
    state, steps = ScalingState(), []
    for load in recording.loads:
        decision = desired_replicas(load, policy, state, load.at)
        state = decision.state
        current = sum(not replica.is_draining for replica in load.replicas)
        steps.append(Step(at=load.at, current=current, decision=decision))
    return steps


def turning_points(steps: list[Step]) -> list[Step]:
    """Return the decisions that differ from the one before in number or reason."""
    kept: list[Step] = []
    for step in steps:
        decision = step.decision
        last = kept[-1].decision if kept else None
        if last is None or (last.replicas, last.reason) != (decision.replicas, decision.reason):
            kept.append(step)
    return kept


def as_table(steps: list[Step]) -> str:
    """Return the turning points with their candidates and clamps."""
    lines = [f"{'time (UTC)':20} {'were':>4} {'want':>4}  reason"]
    for step in turning_points(steps):
        when = datetime.fromtimestamp(step.at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
        decision = step.decision
        lines.append(
            f"{when:20} {step.current:4d} {decision.replicas:4d}  {decision.reason}: {decision.message}"
        )
        if decision.terms:
            candidates = ", ".join(f"{t.signal} {t.replicas}" for t in decision.terms)
            lines.append(f"{'':31}  candidates: {candidates}")
    return "\n".join(lines)


def as_json(steps: list[Step]) -> dict[str, object]:
    """Return the figures that the command prints last."""
    pairs = pairwise(steps)
    return {
        "num_loads": len(steps),
        "num_changes": sum(a.decision.replicas != b.decision.replicas for a, b in pairs),
        "most_replicas": max((s.decision.replicas for s in steps), default=0),
        "decisions": [
            {
                "at": step.at,
                "current": step.current,
                "replicas": step.decision.replicas,
                "reason": step.decision.reason,
                "message": step.decision.message,
            }
            for step in turning_points(steps)
        ],
    }


def advisory(policy: ScalingPolicy) -> ScalingPolicy:
    """Return the policy as it decides without acting: a replay changes nothing."""
    return replace(policy, mode="Advisory")
