"""The pace: stabilization windows and policies of each direction, with the meaning of autoscaling/v2.

Knows past recommendations and changes. Pure arithmetic; returns the number and the rules that changed it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidemill_operator.autoscaling.decision import Clamp
from tidemill_operator.autoscaling.policy import Behavior, PacePolicy, ScalingRules

Moments = tuple[tuple[float, int], ...]


@dataclass(frozen=True, kw_only=True)
class Windows:
    """How long each direction looks back, seconds."""

    up: float
    down: float


@dataclass(frozen=True, kw_only=True)
class Paced:
    """The number after the rules."""

    replicas: int
    clamps: tuple[Clamp, ...] = ()


def windows(behavior: Behavior, default_down_seconds: float) -> Windows:
    """Return the stabilization windows; what is not given is 0 upwards and learned downwards."""
    up, down = (r.stabilization_window_seconds for r in (behavior.scale_up, behavior.scale_down))
    return Windows(up=up or 0.0, down=default_down_seconds if down is None else down)


def remember(moments: Moments, now: float, value: int, keep_seconds: float) -> Moments:
    """Add a moment and forget those that no window looks at; runs of equal values keep their ends."""
    kept = [m for m in moments if m[0] > now - keep_seconds]
    if len(kept) >= 2 and kept[-1][1] == kept[-2][1] == value:
        kept.pop()
    return (*kept, (now, value))


def begun(moments: Moments, now: float, current: int, seconds: float) -> Moments:
    """Take the present number for what was wanted where of so long nothing is known, as autoscaling/v2 does.

    So the window upwards holds after a restart and for a new service, too.
    """
    is_known = any(now - seconds <= at for at, _ in moments)
    return moments if is_known else (*moments, (now, current))


def stabilized(current: int, up: int, down: int, past: tuple[Moments, Moments], window: Windows) -> Paced:
    """Hold a wish to change against the wishes of its window; the last moment of both is now.

    `up` is what is wanted of late at least, `down` what would do with a margin: between them nothing changes.
    """
    now = past[0][-1][0]
    lowest = min(v for at, v in past[0] if at >= now - window.up)
    highest = max(v for at, v in past[1] if at >= now - window.down)
    if up > current:
        after = max(current, min(up, lowest))
        return _paced(up, after, "StabilizationWindow", f"scaleUp looks back {window.up:.0f} s")
    if down < current:
        after = min(current, max(down, highest))
        text = f"scaleDown looks back {window.down:.0f} s, in which {highest} were wanted"
        return _paced(down, after, "StabilizationWindow", text)
    return Paced(replicas=current)


def paced(current: int, wanted: int, changes: Moments, now: float, behavior: Behavior) -> Paced:
    """Bound a change by the policies of its direction."""
    if wanted == current:
        return Paced(replicas=wanted)
    is_up = wanted > current
    rules = behavior.scale_up if is_up else behavior.scale_down
    name = "ScaleUpPace" if is_up else "ScaleDownPace"
    if rules.select_policy == "Disabled":
        return _paced(wanted, current, name, f"{'scaleUp' if is_up else 'scaleDown'} is disabled")
    if not rules.policies:
        return Paced(replicas=wanted)
    limits = [_limit(policy, current, changes, now, is_up=is_up) for policy in rules.policies]
    widest = (rules.select_policy == "Max") == is_up
    limit = max(limits) if widest else min(limits)
    after = max(current, min(wanted, limit)) if is_up else min(current, max(wanted, limit))
    return _paced(wanted, after, name, f"{'scaleUp' if is_up else 'scaleDown'} policies allow {after}")


def _limit(policy: PacePolicy, current: int, changes: Moments, now: float, *, is_up: bool) -> int:
    """Return how far a policy lets the number go, from where it was when the period began."""
    recent = [change for at, change in changes if at > now - policy.period_seconds]
    done = sum(c for c in recent if (c > 0) == is_up)
    start = current - done
    if policy.kind == "Pods":
        return start + policy.value if is_up else start - policy.value
    share = policy.value / 100
    return math.ceil(start * (1 + share) - 1e-9) if is_up else math.floor(start * (1 - share) + 1e-9)


def longest_period(rules: ScalingRules) -> float:
    """Return how long changes matter to a direction's policies."""
    return max((policy.period_seconds for policy in rules.policies), default=0.0)


def _paced(before: int, after: int, name: str, message: str) -> Paced:
    if before == after:
        return Paced(replicas=after)
    return Paced(replicas=after, clamps=(Clamp(name=name, before=before, after=after, message=message),))
