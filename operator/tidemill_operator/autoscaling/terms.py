"""The candidates: how many replicas each signal asks for, and the numbers that say so.

Pure arithmetic on sums. Each returns a `Term`, or None where it abstains. `Facts` are what all of them
share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidemill_operator.autoscaling.arrivals import ArrivalRate
from tidemill_operator.autoscaling.capacity import Capacity, Work, decodes_within
from tidemill_operator.autoscaling.decision import Term
from tidemill_operator.autoscaling.model import StepTimes
from tidemill_operator.autoscaling.policy import ScalingPolicy

OWN_PREFILL_SHARE, LEAST_SHARE = 0.7, 0.1
"""The TTFT budget is 0.7 of the SLO less the prompt's own prefill, at least 0.1 of the SLO."""

TOLERANCE = 1.1
"""A tenth more than replicas should carry is no reason for one more."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the terms are made of; counts are of requests, smooth ones are means over about a minute."""

    policy: ScalingPolicy
    num_ready: int
    num_staying: int
    num_unknown: int
    startup_seconds: float
    waiting: float
    held: float
    backlog_tokens: float
    smooth_kv: float
    smooth_running: float
    smooth_backlog_tokens: float
    smooth_waiting: float
    capacity_tokens: float
    concurrency: float
    utilization: float
    rate: ArrivalRate | None
    work: Work | None
    capacity: Capacity | None
    step_times: StepTimes | None
    margin: float = 1.0
    """On the way down every load is taken times 1.1."""

    @property
    def unknown_kv(self) -> float:
        """Return what replicas without figures hold: nothing on the way up, their target on the way down."""
        return self.num_unknown * self.policy.kv_cache_target if self.margin > 1.0 else 0.0

    @property
    def is_falling(self) -> bool:
        """Say whether the queue falls, or pods that are coming are still to make it fall."""
        return self.waiting + self.held < self.smooth_waiting or self.num_staying > self.num_ready

    @property
    def spare_requests(self) -> float:
        """Return how many waiting requests the fleet works off before a pod asked for now is ready.

        None, whatever the figures promise, where the fleet is complete and the queue is not seen to fall.
        """
        if not self.is_falling:
            return 0.0
        if self.capacity is None or self.rate is None:
            coming = self.num_staying - self.num_ready
            return coming * (self.concurrency + self.policy.queue_length_per_replica)
        spare = self.num_staying * self.capacity.requests_per_second - self.rate.expected
        return max(0.0, spare * self.startup_seconds)


def all_terms(facts: Facts) -> tuple[Term, ...]:
    """Return every candidate that does not abstain."""
    candidates = (kv_cache(facts), queue(facts), first_token(facts), arrival(facts), inter_token(facts))
    return tuple(term for term in candidates if term is not None)


def kv_cache(facts: Facts) -> Term | None:
    """Ask for as many replicas as keep the KV caches at their target, with what waits added."""
    if facts.capacity_tokens <= 0:
        return None
    waiting = facts.waiting + facts.held
    per_request = facts.work.held_tokens if facts.work is not None else 0.0
    coming = waiting * per_request / facts.capacity_tokens if waiting * per_request else 0.0
    use = (facts.smooth_kv + coming) * facts.margin + facts.unknown_kv
    target = facts.policy.kv_cache_target
    return Term(
        signal="KVCache",
        replicas=_up(use / target),
        message=f"KV caches hold {use:.2f} replicas' worth, target {target:.0%} each",
        figures={"kv_use": use, "target": target, "waiting": waiting},
    )


def queue(facts: Facts) -> Term | None:
    """Ask for the replicas that a queue lacks, beyond what is worked off before new ones start."""
    allowed = facts.policy.queue_length_per_replica
    waiting = facts.waiting + facts.held
    deficit = waiting * facts.margin - allowed * facts.num_ready
    if deficit <= 0:
        return None
    per_replica, worked_off = facts.concurrency + allowed, facts.spare_requests
    if facts.capacity is not None:
        per_replica = max(per_replica, facts.capacity.requests_per_second * facts.startup_seconds)
    more = (deficit - worked_off) / per_replica
    more = round(more) if facts.is_falling else _up(more)
    if more <= 0:
        return None
    return Term(
        signal="Queue",
        replicas=facts.num_staying + more,
        message=(
            f"{waiting:.0f} requests wait, {allowed:g} a replica are allowed; "
            f"{worked_off:.0f} are worked off within {facts.startup_seconds:.0f} s"
        ),
        figures={"waiting": waiting, "allowed": allowed * facts.num_ready, "worked_off": worked_off},
    )


def first_token(facts: Facts) -> Term | None:
    """Ask for the speed at which prompts that are not computed yet keep the TTFT objective.

    Those that the fleet computes before a pod asked for now is ready are no reason for one.
    """
    slo = facts.policy.slo.time_to_first_token_seconds
    if slo is None or facts.capacity is None or facts.work is None:
        return None
    speed = facts.capacity.prefill_tokens_per_second
    budget = max(OWN_PREFILL_SHARE * slo - facts.work.uncached / speed, LEAST_SHARE * slo)
    tokens = facts.smooth_backlog_tokens * facts.margin
    wanted = _up(tokens / (speed * budget))
    if wanted > facts.num_staying and facts.rate is not None:
        left = max(0.0, tokens - facts.spare_requests * facts.work.uncached)
        within = max(budget, facts.startup_seconds)
        more = left / (speed * within)
        wanted = min(wanted, facts.num_staying + (round(more) if facts.is_falling else _up(more)))
    return Term(
        signal="TimeToFirstToken",
        replicas=wanted,
        message=f"{tokens:.0f} prompt tokens to compute at {speed:.0f}/s a replica within {budget:.2f} s",
        figures={"prompt_tokens": tokens, "tokens_per_second": speed, "budget_seconds": budget},
    )


def arrival(facts: Facts) -> Term | None:
    """Ask for what the requests that arrive need, now or when pods asked for now would be ready."""
    if facts.rate is None or facts.capacity is None:
        return None
    rate = facts.rate.measured * facts.margin if facts.margin > 1.0 else facts.rate.expected
    each = facts.capacity.requests_per_second * facts.utilization
    why = ""
    if rate == facts.rate.forecast and facts.margin == 1.0 and rate > 0:
        why = f", expected in {facts.startup_seconds:.0f} s"
    return Term(
        signal="ArrivalRate",
        replicas=_up(rate / each / (1.0 if facts.margin > 1.0 else TOLERANCE)),
        message=(
            f"{rate:.2f} requests/s arrive{why}; a replica carries {each:.2f} "
            f"(bound by {facts.capacity.limit}, {facts.utilization:.0%} used)"
        ),
        figures={
            "requests_per_second": rate,
            "per_replica": each,
            "measured": facts.rate.measured,
            "forecast": facts.rate.forecast,
        },
    )


def inter_token(facts: Facts) -> Term | None:
    """Ask for as many replicas as keep each one's decodes few enough for the inter-token objective."""
    slo = facts.policy.slo.inter_token_seconds
    if slo is None or facts.step_times is None or facts.work is None:
        return None
    most = decodes_within(facts.step_times, facts.work, slo)
    running = facts.smooth_running * facts.margin
    return Term(
        signal="InterTokenLatency",
        replicas=_up(running / most),
        message=f"{running:.0f} requests run; {most:.0f} at once keep a step within {slo:g} s",
        figures={"running": running, "most": most},
    )


def _up(value: float) -> int:
    """Round up, but not for the sake of a rounding error."""
    return math.ceil(value - 1e-6)
