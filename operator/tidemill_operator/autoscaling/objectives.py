"""Whether the service keeps its latency objectives, and how full replicas may be so that it does.

The utilization is learned by feedback: it falls while a settled fleet misses an objective and rises while one
that is about as full as allowed keeps it easily. A fleet that has just changed teaches nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemill_operator.autoscaling.decision import Finding
from tidemill_operator.autoscaling.memory import LatencyWindow, Memory, Verdict
from tidemill_operator.autoscaling.percentiles import percentile, share_within
from tidemill_operator.autoscaling.policy import ScalingPolicy

LOWEST, HIGHEST = 0.4, 0.95
FALL_PER_MINUTE, RISE_PER_MINUTE = 0.03, 0.03
EASY = 0.7
"""An objective is kept easily at this share of it."""
NEAR = 0.1
SETTLING_SECONDS = 90.0
"""So long after a change what requests meet is still the change's doing."""
VERDICT_SECONDS = 300.0
"""What was said of the objectives stands until nothing has said it for so long; a miss is told at once."""


@dataclass(frozen=True, kw_only=True)
class Latencies:
    """Measured percentiles, seconds; None: too little was observed, or nothing is promised."""

    first_token: float | None
    inter_token: float | None
    worst_share: float | None
    """The larger of measured over promised."""


def latencies(memory: Memory, policy: ScalingPolicy) -> Latencies:
    """Return the percentiles that the objectives name."""
    slo = policy.slo
    first = percentile(memory.time_to_first_token, slo.percentile)
    inter = percentile(memory.inter_token, slo.percentile)
    pairs = ((first, slo.time_to_first_token_seconds), (inter, slo.inter_token_seconds))
    shares = [measured / promised for measured, promised in pairs if measured is not None and promised]
    return Latencies(
        first_token=first,
        inter_token=inter,
        worst_share=max(shares, default=None),
    )


def pressure(memory: Memory, policy: ScalingPolicy, *, is_lost: bool = False) -> float | None:
    """Return how much of the objectives a settled fleet needs; None where nobody can say.

    What is missed must be missed of late, too: a miss that is over says nothing of the fleet as it is now.
    Of the gaps between tokens the median counts, since an engine lets single gaps grow up to the objective to
    get prompts done. Where the promise of a first token is lost by the prompts' lengths (`is_lost`), neither
    a miss nor its absence says anything of fullness: then only gaps that are too long do.
    """
    slo = policy.slo
    first = _lower(
        percentile(memory.settled_first, slo.percentile), memory.time_to_first_token, slo.percentile
    )
    median = percentile(memory.settled_inter, 50)
    promised_first = None if is_lost else slo.time_to_first_token_seconds
    pressing = ((first, promised_first), (median, slo.inter_token_seconds))
    shares = [measured / promised for measured, promised in pressing if measured is not None and promised]
    most = max(shares, default=None)
    return None if is_lost and most is not None and most <= 1.0 else most


def _lower(measured: float | None, lately: LatencyWindow | None, percent: float) -> float | None:
    """Return the percentile, or that of late where it is lower."""
    of_late = percentile(lately, percent)
    return measured if measured is None or of_late is None else min(measured, of_late)


def since_settled(memory: Memory, now: float) -> Memory:
    """Forget the latencies of a fleet that has not settled yet."""
    if memory.last_change is None or now - memory.last_change > SETTLING_SECONDS:
        return memory
    return replace(memory, settled_first=None, settled_inter=None)


def spent(memory: Memory, policy: ScalingPolicy) -> float | None:
    """Return the share of the hour's error budget that is spent: 1 where as many are late as may be."""
    promised = policy.slo.time_to_first_token_seconds
    if promised is None:
        return None
    good = share_within(memory.time_to_first_token_hour, promised)
    return None if good is None else (1.0 - good) / max(0.005, 1.0 - policy.slo.percentile / 100)


@dataclass(frozen=True, kw_only=True)
class Fullness:
    """The share of its capacity that a fleet is used to, None where unknown, and to which it may be."""

    used: float | None
    allowed: float


def utilization(before: float, full: Fullness, pressure: float | None, minutes: float) -> float:
    """Return how full a single replica may be, after so many more minutes."""
    if pressure is None or full.used is None:
        return before
    if pressure > 1.0:
        return max(LOWEST, before - FALL_PER_MINUTE * minutes)
    if pressure < EASY and full.used >= full.allowed - NEAR:
        return min(HIGHEST, before + RISE_PER_MINUTE * minutes)
    return before


def finding(measured: Latencies, policy: ScalingPolicy, *, may_help: bool) -> Finding | None:
    """Return what to say about the objectives; None where nothing is promised.

    `may_help`: a late first token may be the queue's doing, so that more replicas would help.
    """
    slo = policy.slo
    if slo.time_to_first_token_seconds is None and slo.inter_token_seconds is None:
        return None
    if measured.worst_share is None:
        text = "too few requests of late to say"
        return Finding(condition="SLOMet", status="Unknown", reason="TooFewSamples", message=text)
    told = _told(measured, policy)
    if measured.worst_share <= 1.0:
        return Finding(condition="SLOMet", status="True", reason="WithinObjectives", message=told)
    is_first = (
        measured.first_token is not None
        and slo.time_to_first_token_seconds is not None
        and measured.first_token > slo.time_to_first_token_seconds
    )
    reason = "PromptsTooLong" if is_first and not may_help else "ObjectiveMissed"
    return Finding(condition="SLOMet", status="False", reason=reason, message=told)


def steadied(
    found: Finding | None, policy: ScalingPolicy, before: Verdict | None, now: float
) -> tuple[Finding | None, Verdict | None]:
    """Say what was said before until it has not been measured for a while: no condition should flap.

    A percentile at what is promised crosses it again and again, and so does the share of prompts out of reach
    what may be late. A new miss, what comes after Unknown and new objectives are told at once.
    """
    if found is None:
        return None, None
    verdict = Verdict(status=found.status, reason=found.reason, agreed_at=now, slo=policy.slo)
    if before is None or before.slo != policy.slo or before.status == "Unknown":
        return found, verdict
    is_new_miss = found.status == "False" and before.status == "True"
    has_agreed = (found.status, found.reason) == (before.status, before.reason)
    if is_new_miss or has_agreed or not 0 <= now - before.agreed_at < VERDICT_SECONDS:
        return found, verdict
    text = f"{found.message} ({found.reason}, {before.reason} within {VERDICT_SECONDS / 60:.0f} minutes)"
    return replace(found, status=before.status, reason=before.reason, message=text), before


def _told(measured: Latencies, policy: ScalingPolicy) -> str:
    slo, parts = policy.slo, []
    for name, value, promised in (
        ("time to first token", measured.first_token, slo.time_to_first_token_seconds),
        ("inter-token latency", measured.inter_token, slo.inter_token_seconds),
    ):
        if value is not None and promised is not None:
            parts.append(f"P{slo.percentile} {name} {value:.3g} s of {promised:g} s")
    return ", ".join(parts)
