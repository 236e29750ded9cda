"""From one load and what is remembered to the facts that signals work with."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemill_operator.autoscaling import fleet_view, learn, objectives
from tidemill_operator.autoscaling.arrivals import ArrivalRate, arrival_rate
from tidemill_operator.autoscaling.capacity import Capacity, Work
from tidemill_operator.autoscaling.counting import count
from tidemill_operator.autoscaling.decision import Learned, ScalingState
from tidemill_operator.autoscaling.fleet_view import FleetView
from tidemill_operator.autoscaling.memory import Memory
from tidemill_operator.autoscaling.model import FleetLoad
from tidemill_operator.autoscaling.policy import ScalingPolicy
from tidemill_operator.autoscaling.staffing import allowed_share, first_utilization
from tidemill_operator.autoscaling.terms import Facts

DEFAULT_CONCURRENCY = 16.0


@dataclass(frozen=True, kw_only=True)
class _Known:
    """One load and what follows from it and from what was learned before."""

    load: FleetLoad
    view: FleetView
    policy: ScalingPolicy
    startup_seconds: float
    machine: learn.Machine | None
    rate: ArrivalRate | None
    work: Work | None
    capacity: Capacity | None


def gather(
    load: FleetLoad, view: FleetView, policy: ScalingPolicy, state: ScalingState
) -> tuple[Learned, Memory, Facts]:
    """Count, learn, and gather what the terms need."""
    before = state.memory
    elapsed = 0.0 if before.at is None else max(0.0, load.at - before.at)
    learned, memory = learn.with_new_pods(state.learned, before, view)
    fresh = [r for r in view.ready if fleet_view.is_fresh(r, load.at, policy.stale_after_seconds)]
    memory = _smoothed(count(load, fresh, memory), before, view, elapsed)
    startup = learned.startup_seconds or learn.DEFAULT_STARTUP_SECONDS
    rate = arrival_rate(memory.arrivals, load.at, startup + policy.interval_seconds)
    work, learned = learn.work_of(learned, memory, rate)
    machine = learn.machine_of(view.known)
    known = _Known(
        load=load,
        view=view,
        policy=policy,
        startup_seconds=startup,
        machine=machine,
        rate=rate,
        work=work,
        capacity=learn.capacity_of(machine, work, learned, policy),
    )
    learned = _learn_concurrency(_with_capacity(learned, known.capacity), view)
    utilization, memory = _utilization(known, learned, memory, elapsed)
    if learned.utilization is not None or not _is_to_be_known(machine, known.capacity, policy):
        learned = replace(learned, utilization=utilization)
    return learned, memory, _facts(known, learned, memory, utilization)


def _with_capacity(learned: Learned, capacity: Capacity | None) -> Learned:
    """Take what a replica's capacity was found to be."""
    if capacity is None:
        return learned
    return replace(
        learned,
        prefill_tokens_per_second=capacity.prefill_tokens_per_second,
        decode_tokens_per_second=capacity.decode_tokens_per_second,
        out_of_reach_share=capacity.out_of_reach,
    )


def _utilization(known: _Known, learned: Learned, memory: Memory, elapsed: float) -> tuple[float, Memory]:
    """Return how full a single replica may be by now, and note where the fleet is not settled."""
    capacity, rate, num_ready = known.capacity, known.rate, len(known.view.ready)
    used = None
    if capacity is not None and rate is not None and num_ready:
        used = rate.measured / (num_ready * capacity.requests_per_second)
    before = learned.utilization or _first_utilization(capacity, known.policy)
    allowed = allowed_share(before, num_ready)
    if rate is not None and _is_restless(rate, used, allowed):
        memory = replace(memory, last_change=known.load.at)
    memory = objectives.since_settled(memory, known.load.at)
    is_lost = capacity is not None and capacity.lost > 0
    pressure = objectives.pressure(memory, known.policy, is_lost=is_lost)
    full = objectives.Fullness(used=used, allowed=allowed)
    return objectives.utilization(before, full, pressure, elapsed / 60.0), memory


def _facts(known: _Known, learned: Learned, memory: Memory, utilization: float) -> Facts:
    """Put together what the terms are made of."""
    view, machine, startup = known.view, known.machine, known.startup_seconds
    slots = machine.limits.max_num_seqs if machine else DEFAULT_CONCURRENCY
    return Facts(
        policy=known.policy,
        num_ready=len(view.ready),
        num_staying=view.num_staying,
        num_unknown=view.num_unknown,
        startup_seconds=startup,
        coming_seconds=tuple(
            startup if r.is_unschedulable else max(0.0, r.created + startup - known.load.at)
            for r in view.coming[: view.num_coming]
        ),
        waiting=view.num_waiting,
        held=view.held_requests,
        backlog_tokens=view.waiting_prompt_tokens + view.held_prompt_tokens,
        smooth_kv=min(memory.smooth.get("kv", 0.0), view.kv_use),
        smooth_running=min(memory.smooth.get("running", 0.0), view.num_running),
        smooth_backlog_tokens=memory.smooth.get("backlog_tokens", 0.0),
        smooth_waiting=memory.smooth.get("waiting", 0.0),
        capacity_tokens=machine.limits.capacity_tokens if machine else 0.0,
        concurrency=learned.concurrency or slots,
        utilization=utilization,
        rate=known.rate,
        work=known.work,
        capacity=known.capacity,
        step_times=machine.step_times if machine else None,
    )


def _first_utilization(capacity: Capacity | None, policy: ScalingPolicy) -> float:
    """Return how full a single replica may be before anything is learned: less where chance demands it."""
    common = first_utilization(policy.slo.percentile)
    if capacity is None or capacity.by_chance is None:
        return common
    return max(objectives.LOWEST, min(common, capacity.by_chance))


def _is_to_be_known(machine: learn.Machine | None, capacity: Capacity | None, policy: ScalingPolicy) -> bool:
    """Say whether lengths, which the first utilization depends on, are still to be measured."""
    if policy.slo.time_to_first_token_seconds is None or machine is None or machine.step_times is None:
        return False
    return capacity is None or capacity.by_chance is None


def _is_restless(rate: ArrivalRate, used: float | None, allowed: float) -> bool:
    """Say whether the load is rising, or is more than replicas are meant to carry."""
    is_rising = rate.forecast > 1.15 * rate.measured
    return is_rising or (used is not None and used > allowed + objectives.NEAR)


def _smoothed(memory: Memory, before: Memory, view: FleetView, elapsed: float) -> Memory:
    """Update the means, and note when the fleet last changed."""
    now = {
        "kv": view.kv_use,
        "running": float(view.num_running),
        "backlog_tokens": view.waiting_prompt_tokens + view.held_prompt_tokens,
        "waiting": float(view.num_waiting + view.held_requests),
    }
    is_changing = bool(view.coming) or memory.known_ready != before.known_ready or before.at is None
    return replace(
        memory,
        smooth=learn.smoothed(before, elapsed, now),
        last_change=memory.at if is_changing else before.last_change,
    )


def _learn_concurrency(learned: Learned, view: FleetView) -> Learned:
    """Learn how many requests a replica runs while others wait: the larger numbers count more."""
    busy = [float(f.num_running) for f in view.known if f.num_waiting > 0]
    concurrency = learned.concurrency
    for running in busy:
        if concurrency is None:
            concurrency = running
        else:
            concurrency += (0.09 if running > concurrency else 0.01) * (running - concurrency)
    return replace(learned, concurrency=concurrency)
