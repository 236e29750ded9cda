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
from tidemill_operator.autoscaling.staffing import (
    allowed_share,
    late_price,
    replicas_for,
    replicas_to_catch_up,
)

OWN_PREFILL_SHARE, LEAST_SHARE = 0.7, 0.1
"""The TTFT budget is 0.7 of the SLO less the prompt's own prefill, at least 0.1 of the SLO."""

DOUBT, LEAST_DOUBT, LEVEL_DOUBT = 0.25, 0.03, 0.07
"""A rate counts so many standard errors, or this share of it, lower on the way up, higher down; more while it
is level, when there is no hurry."""

QUEUE_HOLD_SECONDS = 60.0
"""How long a replica stays that was made for a queue, once that is gone."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the terms are made of; counts are of requests, smooth ones are means over about a minute.

    Of what is held and runs, what there is now counts where it is less than the mean: what has ended needs no
    replica.
    """

    policy: ScalingPolicy
    num_ready: int
    num_staying: int
    num_unknown: int
    startup_seconds: float
    coming_seconds: tuple[float, ...]
    """In how many seconds each replica that is coming will be ready."""
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
    """How full a single replica may be; more of them may be fuller."""
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

    def left_seconds(self, seconds: float) -> float:
        """Return what is left of a backlog when pods asked for now are ready, in seconds of one replica.

        Until then the fleet works at its capacity, and what arrives comes on top. Nothing is believed to
        have been worked off, whatever the figures promise, where the fleet is complete and the queue is not
        seen to fall.
        """
        if self.capacity is None or self.rate is None:
            return seconds
        working = self.num_ready * self.startup_seconds
        working += sum(max(0.0, self.startup_seconds - left) for left in self.coming_seconds)
        arriving = self.rate.measured / self.capacity.requests_per_second * self.startup_seconds
        left = max(0.0, seconds + arriving - working)
        return left if self.is_falling else max(left, seconds)


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
    """Ask for the replicas that work off a queue which is longer than allowed, as far as it will not go."""
    allowed = facts.policy.queue_length_per_replica
    waiting = facts.waiting + facts.held
    deficit = waiting * facts.margin - allowed * facts.num_ready
    if deficit <= 0:
        return None
    if facts.capacity is None or facts.rate is None:
        per_replica = facts.concurrency + allowed
        num_coming = facts.num_staying - facts.num_ready
        if math.isfinite(per_replica):
            more = _up(deficit / per_replica - num_coming)
        else:
            more = 0 if num_coming > 0 else 1
        replicas, left = facts.num_staying + max(0, more), deficit
    else:
        left = facts.left_seconds(deficit / facts.capacity.requests_per_second)
        replicas = _catching_up(facts, left)
    return Term(
        signal="Queue",
        replicas=replicas,
        message=(
            f"{waiting:.0f} requests wait, {allowed:g} a replica are allowed; {left:.0f} replica-seconds of "
            f"them will be left in {facts.startup_seconds:.0f} s"
        ),
        figures={"waiting": waiting, "allowed": allowed * facts.num_ready, "left_seconds": left},
    )


def first_token(facts: Facts) -> Term | None:
    """Ask for the replicas that compute the waiting prompts, where those there are would be late."""
    slo = facts.policy.slo.time_to_first_token_seconds
    if slo is None or facts.capacity is None or facts.work is None:
        return None
    speed = facts.capacity.prefill_tokens_per_second
    budget = max(OWN_PREFILL_SHARE * slo - facts.work.uncached / speed, LEAST_SHARE * slo)
    tokens = min(facts.smooth_backlog_tokens, facts.backlog_tokens) * facts.margin
    wanted = _up(tokens / (speed * budget))
    if wanted > facts.num_staying and facts.rate is not None:
        late = tokens / speed - facts.num_ready * budget
        wanted = max(facts.num_staying, _catching_up(facts, facts.left_seconds(late)))
    return Term(
        signal="TimeToFirstToken",
        replicas=wanted,
        message=f"{tokens:.0f} prompt tokens to compute at {speed:.0f}/s a replica within {budget:.2f} s",
        figures={"prompt_tokens": tokens, "tokens_per_second": speed, "budget_seconds": budget},
    )


def _catching_up(facts: Facts, left_seconds: float) -> int:
    """Return the replicas that carry what arrives and work off so many replica-seconds beside it."""
    if facts.capacity is None or facts.rate is None:
        return facts.num_staying
    full = facts.rate.measured / facts.capacity.requests_per_second
    hold = facts.startup_seconds + QUEUE_HOLD_SECONDS
    price = late_price(facts.policy.slo.percentile) * (1.0 - (facts.capacity.out_of_reach or 0.0))
    return round(full + replicas_to_catch_up(left_seconds, full, hold, price))


def arrival(facts: Facts) -> Term | None:
    """Ask for what the requests that arrive need, now or when pods asked for now would be ready.

    On the way up what surely arrives counts, on the way down what may: between them nothing changes.
    """
    if facts.rate is None or facts.capacity is None:
        return None
    rate, is_down = facts.rate, facts.margin > 1.0
    least = LEVEL_DOUBT if rate.is_level else LEAST_DOUBT
    doubt = max(least * rate.measured, DOUBT * rate.error)
    surely = max(rate.forecast - doubt, rate.least)
    wanted = max(surely, min(rate.measured + doubt, rate.most)) if is_down else surely
    each = facts.capacity.requests_per_second
    replicas = replicas_for(wanted / each, facts.utilization)
    why = f", expected in {facts.startup_seconds:.0f} s" if rate.forecast > rate.measured else ""
    share = allowed_share(facts.utilization, replicas)
    out_of_reach = facts.capacity.out_of_reach
    too_long = ""
    if out_of_reach is not None and facts.capacity.lost > 0:
        too_long = f"; {out_of_reach:.0%} of the prompts are too long to be in time on any replica"
    return Term(
        signal="ArrivalRate",
        replicas=replicas,
        message=(
            f"{wanted:.2f} requests/s arrive{why}; a replica carries {each:.2f} "
            f"(bound by {facts.capacity.limit}), {replicas} may be {share:.0%} full{too_long}"
        ),
        figures={
            "requests_per_second": wanted,
            "per_replica": each,
            "measured": rate.measured,
            "forecast": rate.forecast,
            "error": rate.error,
            **({} if out_of_reach is None else {"out_of_reach": out_of_reach}),
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
