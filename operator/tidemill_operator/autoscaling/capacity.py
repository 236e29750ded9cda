"""What one replica carries: requests a second by its own step times, limits and the SLO.

Knows a queueing identity: with requests that cost `work` seconds of steps each, beside a fixed part `a` of
every step, x of them a second make steps of a / (1 - x work) seconds, in which x out step requests decode
at once. So each limit (inter-token SLO, slots, KV cache) is a largest x in closed form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tidemill_operator.autoscaling import queueing, reach
from tidemill_operator.autoscaling.model import StepTimes
from tidemill_operator.autoscaling.policy import ScalingPolicy

MOST_BUSY = 0.97
"""Nothing runs at more than this share of its steps' time."""

LONG_PROMPT = 1.3
"""A prompt that is as long as objectives look at takes so many times the mean one's time."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """The requests of late, on average, in tokens."""

    prompt: float
    uncached: float
    output: float
    spread: float | None = None
    """Standard deviation of prompts over their mean; None: unknown."""

    @property
    def held_tokens(self) -> float:
        """Return what a request holds of the KV cache on average."""
        return self.prompt + self.output / 2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a replica has room for."""

    max_num_seqs: float
    capacity_tokens: float


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Requests a second of one replica, which limit binds, and the concurrency at that point."""

    requests_per_second: float
    limit: str
    concurrency: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    out_of_reach: float | None = None
    """If known, the share of prompts that can't have their first token in time on any replica."""
    lost: float = 0.0
    """How far the promise of a first token is lost by that; at 1 it asks for no more replicas."""
    by_chance: float | None = None
    """If known, the share of these requests a second up to which one replica alone keeps first tokens in
    time, although requests come at random."""


def by_step_times(times: StepTimes, work: Work, limits: Limits, policy: ScalingPolicy) -> Capacity:
    """Return what a replica with these step times carries."""
    prefill = work.uncached * times.token_seconds + work.uncached**2 / 2 * times.attention_pair_seconds
    context = (work.prompt + work.output / 2) * times.context_token_seconds
    per_token = times.token_seconds + times.row_seconds + context
    seconds = max(1e-9, prefill + work.output * per_token)
    fixed = max(1e-9, times.fixed_seconds)
    slots = _slots(work, limits, policy)
    rates = {
        "slots": slots / (work.output * fixed + slots * seconds),
        "compute": MOST_BUSY / seconds,
    }
    slo = policy.slo.inter_token_seconds
    if slo is not None:
        rates["inter-token SLO"] = max(0.05, 1 - fixed / slo) / seconds
    first = policy.slo.time_to_first_token_seconds
    out_of_reach, lost = None, 0.0
    if first is not None:
        out_of_reach = reach.share_out_of_reach(prefill, work.spread, first)
        lost = reach.lost(out_of_reach, policy.slo.percentile)
        share = max(0.2, 1 - LONG_PROMPT * prefill / first)
        rates["time to first token"] = (share + lost * (1 - share)) / seconds
    limit = min(rates, key=lambda name: rates[name])
    rate = rates[limit]
    most = _by_chance(prefill, fixed, work, policy)
    step = fixed / max(1e-9, 1 - min(MOST_BUSY, rate * seconds))
    return Capacity(
        requests_per_second=rate,
        limit=limit,
        concurrency=min(slots, rate * work.output * step),
        prefill_tokens_per_second=work.uncached / prefill if prefill > 0 else math.inf,
        decode_tokens_per_second=slots / (fixed + slots * per_token),
        out_of_reach=out_of_reach,
        lost=lost,
        by_chance=None if most is None else most / rate,
    )


def _by_chance(prefill: float, fixed: float, work: Work, policy: ScalingPolicy) -> float | None:
    """Return the requests a second whose first tokens one replica brings in time; None where unknown.

    Of a step as long as the inter-token objective lets it be, the fixed part is no time for prompts.
    """
    first, longest_step = policy.slo.time_to_first_token_seconds, policy.slo.inter_token_seconds
    if first is None or work.spread is None or prefill <= 0:
        return None
    own = prefill if longest_step is None else prefill / max(0.05, 1 - fixed / longest_step)
    late_share = max(reach.LEAST_ALLOWED, 1.0 - policy.slo.percentile / 100)
    return queueing.busy_share(own, work.spread, first, late_share) / own


def by_speeds(prefill: float, decode: float, work: Work, limits: Limits, policy: ScalingPolicy) -> Capacity:
    """Return what a replica with these measured speeds, tokens a second, carries."""
    seconds = max(1e-9, work.uncached / prefill + work.output / decode)
    return Capacity(
        requests_per_second=1 / seconds,
        limit="measured speeds",
        concurrency=_slots(work, limits, policy),
        prefill_tokens_per_second=prefill,
        decode_tokens_per_second=decode,
    )


def _slots(work: Work, limits: Limits, policy: ScalingPolicy) -> float:
    """Return how many requests run at once at most: slots, or what the KV cache holds at its target."""
    by_memory = policy.kv_cache_target * limits.capacity_tokens / max(1.0, work.held_tokens)
    return max(1.0, min(limits.max_num_seqs, by_memory))


def decodes_within(times: StepTimes, work: Work, inter_token_seconds: float) -> float:
    """Return how many requests may decode at once so that a step without prompts stays within so long."""
    context = (work.prompt + work.output / 2) * times.context_token_seconds
    per_row = max(1e-9, times.token_seconds + times.row_seconds + context)
    return max(1.0, (inter_token_seconds - times.fixed_seconds) / per_row)
