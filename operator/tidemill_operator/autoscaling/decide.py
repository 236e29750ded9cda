"""`desired_replicas`: one load, one policy, what is remembered and the time, and out comes a decision.

The order: who counts; what was counted since; what is learned; a candidate from each signal, on the way up as
it is and on the way down with a margin; then the rules (window, pace, schedules, bounds), each of which says
what it changed. Returns a number and reasons: nothing here writes, waits or asks for the time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemill_operator.autoscaling import behavior, fleet_view, learn, objectives, zero
from tidemill_operator.autoscaling.arrivals import SHORT_SECONDS, ArrivalRate, arrival_rate
from tidemill_operator.autoscaling.counting import count
from tidemill_operator.autoscaling.decision import (
    Clamp,
    Decision,
    Finding,
    HistoryEntry,
    Learned,
    ScalingState,
    Term,
)
from tidemill_operator.autoscaling.fleet_view import FleetView
from tidemill_operator.autoscaling.memory import Memory
from tidemill_operator.autoscaling.model import FleetLoad
from tidemill_operator.autoscaling.policy import ScalingPolicy
from tidemill_operator.autoscaling.schedules import active
from tidemill_operator.autoscaling.terms import Facts, all_terms

DOWN_MARGIN = 1.1
MAX_HISTORY = 5
WINDOW_PER_STARTUP = 2.0
SHORTEST_WINDOW, LONGEST_WINDOW = 60.0, 300.0
CAUTION, MOST_CAUTION = 2.0, 8.0
"""The default window down grows with the error budget that is spent: twice as long where it is all spent."""
DEFAULT_CONCURRENCY = 16.0


@dataclass(frozen=True, kw_only=True)
class _Wish:
    """What the signals want: at least `up`, and `down` would do with a margin."""

    up: int
    down: int
    reason: str
    message: str
    terms: tuple[Term, ...] = ()
    may_shrink: bool = True
    hold: str = ""
    """Why nothing may change at all; empty: it may."""


def desired_replicas(load: FleetLoad, policy: ScalingPolicy, state: ScalingState, now: float) -> Decision:
    """Decide how many replicas there should be at `now`."""
    view = fleet_view.view(load, policy)
    learned, memory, facts = _learn(load, view, policy, state)
    state = replace(
        state,
        learned=learned,
        memory=memory,
        last_request_time=zero.last_request_time(state.last_request_time, load, view),
    )
    current = max(view.num_staying, load.current_replicas - len(view.draining))
    measured = objectives.latencies(memory, policy)
    wish = _wish(load, view, facts, current)
    replicas, clamps, state = _apply_rules(wish, current, policy, state, now)
    replicas, clamps, wish = _apply_zero(load, view, policy, state, (replicas, clamps, wish))
    has_backlog = bool(wish.terms) and facts.waiting + facts.held + facts.smooth_backlog_tokens > 0
    findings = _findings(view, policy, wish, clamps, current)
    slo = objectives.finding(measured, policy, has_backlog=has_backlog)
    return _decision(replicas, wish, clamps, (*findings, *((slo,) if slo else ())), _Frame(
        current=current, policy=policy, state=state, now=now
    ))


@dataclass(frozen=True, kw_only=True)
class _Frame:
    current: int
    policy: ScalingPolicy
    state: ScalingState
    now: float


def _learn(
    load: FleetLoad, view: FleetView, policy: ScalingPolicy, state: ScalingState
) -> tuple[Learned, Memory, Facts]:
    """Count, learn, and gather what the terms need."""
    before = state.memory
    elapsed = 0.0 if before.at is None else max(0.0, load.at - before.at)
    learned, memory = learn.with_new_pods(state.learned, before, view)
    known = [r for r in view.ready if fleet_view.is_fresh(r, load.at, policy.stale_after_seconds)]
    memory = count(load, known, memory).memory
    memory = _smoothed(memory, before, view, elapsed)
    startup = learned.startup_seconds or learn.DEFAULT_STARTUP_SECONDS
    rate = arrival_rate(memory.arrivals, load.at, startup + policy.interval_seconds)
    work, learned = learn.work_of(learned, memory, rate.prompt_tokens_per_request if rate else None)
    machine = learn.machine_of(view.known)
    capacity = learn.capacity_of(machine, work, learned, policy)
    if capacity is not None:
        learned = replace(
            learned,
            prefill_tokens_per_second=capacity.prefill_tokens_per_second,
            decode_tokens_per_second=capacity.decode_tokens_per_second,
        )
    learned = _learn_concurrency(learned, view)
    used = None
    if capacity is not None and rate is not None and view.ready:
        used = rate.measured / (len(view.ready) * capacity.requests_per_second)
    utilization = learned.utilization or learn.DEFAULT_UTILIZATION
    if rate is not None and _is_restless(rate, used, utilization):
        memory = replace(memory, last_change=load.at)
    is_steady = load.at - (memory.last_change or load.at) > objectives.STEADY_SECONDS
    share = objectives.latencies(memory, policy).pressure if is_steady else None
    utilization = objectives.utilization(utilization, used, share, elapsed / 60.0)
    learned = replace(learned, utilization=utilization)
    slots = machine.limits.max_num_seqs if machine else DEFAULT_CONCURRENCY
    return learned, memory, Facts(
        policy=policy,
        num_ready=len(view.ready),
        num_staying=view.num_staying,
        num_unknown=view.num_unknown,
        startup_seconds=startup,
        waiting=view.num_waiting,
        held=view.held_requests,
        backlog_tokens=view.waiting_prompt_tokens + view.held_prompt_tokens,
        smooth_kv=memory.smooth.get("kv", 0.0),
        smooth_running=memory.smooth.get("running", 0.0),
        smooth_backlog_tokens=memory.smooth.get("backlog_tokens", 0.0),
        capacity_tokens=machine.limits.capacity_tokens if machine else 0.0,
        concurrency=learned.concurrency or slots,
        utilization=utilization,
        rate=rate,
        work=work,
        capacity=capacity,
        step_times=machine.step_times if machine else None,
    )


def _is_restless(rate: ArrivalRate, used: float | None, utilization: float) -> bool:
    """Say whether the load is changing, or more than replicas are meant to carry: neither teaches anything."""
    is_rising = rate.expected > 1.15 * rate.measured
    return is_rising or (used is not None and used > utilization + objectives.NEAR)


def _smoothed(memory: Memory, before: Memory, view: FleetView, elapsed: float) -> Memory:
    """Update the means, and note when the fleet last changed."""
    now = {
        "kv": view.kv_use,
        "running": float(view.num_running),
        "backlog_tokens": view.waiting_prompt_tokens + view.held_prompt_tokens,
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


def _wish(load: FleetLoad, view: FleetView, facts: Facts, current: int) -> _Wish:
    """Let every signal say its number; hold where too little is known."""
    hold = _hold(view, current)
    if hold:
        return _Wish(up=current, down=current, reason="MetricsMissing", message=hold, hold=hold)
    up_terms = all_terms(facts)
    down_terms = all_terms(replace(facts, margin=DOWN_MARGIN))
    if not up_terms and not view.known:
        text = "no replica is ready yet" if current else "the service is at zero"
        return _Wish(up=current, down=current, reason="Starting" if current else "AtZero", message=text)
    best = max(up_terms, key=lambda term: term.replicas)
    up = best.replicas
    down = max(up, max((term.replicas for term in down_terms), default=0))
    is_free = view.num_waiting == 0 and view.held_requests == 0 and view.is_every_gateway_known
    if up <= current:
        best = max(down_terms or up_terms, key=lambda term: term.replicas)
    return _Wish(
        up=up,
        down=down,
        reason=best.signal,
        message=best.message,
        terms=up_terms,
        may_shrink=is_free and facts.rate is not None and facts.rate.seconds >= SHORT_SECONDS - 1,
    )


def _hold(view: FleetView, current: int) -> str:
    """Say why nothing may change: missing is neither zero nor the last value."""
    if view.ready and view.is_mostly_unknown:
        return f"{view.num_unknown} of {len(view.ready)} ready replicas give no figures ({view.missing})"
    if current == 0 and not view.is_every_gateway_known:
        return "the service is at zero and a gateway does not answer"
    return ""


def _apply_rules(
    wish: _Wish, current: int, policy: ScalingPolicy, state: ScalingState, now: float
) -> tuple[int, tuple[Clamp, ...], ScalingState]:
    """Put the wish through windows, pace, schedules and bounds, and remember it."""
    startup = state.learned.startup_seconds or learn.DEFAULT_STARTUP_SECONDS
    spent = objectives.spent(state.memory, policy)
    caution = min(MOST_CAUTION, max(1.0, CAUTION * spent)) if spent is not None else 1.0
    default_down = caution * min(LONGEST_WINDOW, max(SHORTEST_WINDOW, WINDOW_PER_STARTUP * startup))
    window = behavior.windows(policy.behavior, default_down)
    keep = max(window.up, window.down) + policy.interval_seconds
    past_up = behavior.remember(state.memory.wanted_up, now, wish.up, keep)
    past_down = behavior.remember(state.wanted, now, wish.down, keep)
    periods = (
        behavior.longest_period(rules)
        for rules in (policy.behavior.scale_up, policy.behavior.scale_down)
    )
    longest = max(periods)
    changes = tuple(c for c in state.changes if c[0] > now - longest)
    state = replace(
        state,
        wanted=past_down,
        changes=changes,
        memory=replace(state.memory, wanted_up=past_up),
    )
    if wish.hold:
        return current, (), state
    down = wish.down if wish.may_shrink else max(wish.down, current)
    steady = behavior.stabilized(current, wish.up, down, (past_up, past_down), window)
    slow = behavior.paced(current, steady.replicas, changes, now, policy.behavior)
    clamps = [*steady.clamps, *slow.clamps]
    if down > wish.down and wish.down < current:
        text = "requests wait: nothing is removed"
        clamps.insert(0, Clamp(name="RequestsWait", before=wish.down, after=down, message=text))
    replicas = slow.replicas
    floor = active(policy.schedules, now)
    if floor is not None and replicas < floor.min_replicas:
        text = f"schedule {floor.name} asks for at least {floor.min_replicas}"
        clamps.append(Clamp(name="Schedule", before=replicas, after=floor.min_replicas, message=text))
        replicas = floor.min_replicas
    return replicas, tuple(clamps), state


def _apply_zero(
    load: FleetLoad,
    view: FleetView,
    policy: ScalingPolicy,
    state: ScalingState,
    so_far: tuple[int, tuple[Clamp, ...], _Wish],
) -> tuple[int, tuple[Clamp, ...], _Wish]:
    """Wake from zero, go to zero, and keep within minimum and maximum."""
    replicas, clamps, wish = so_far
    current = max(view.num_staying, load.current_replicas - len(view.draining))
    floor = active(policy.schedules, load.at)
    if current == 0:
        woken = zero.wake(load, view, policy, state.learned.concurrency or DEFAULT_CONCURRENCY)
        if woken:
            text = f"{view.held_requests} requests are held for a service at zero"
            wish = replace(wish, up=woken, down=woken, reason="Activation", message=text, hold="")
            replicas = max(replicas, woken)
    elif policy.scale_to_zero is not None and replicas <= 1 and not wish.hold:
        idle = zero.idleness(load, view, policy, state.last_request_time)
        if idle.may_go and floor is None:
            return 0, clamps, replace(wish, up=0, down=0, reason="Idle", message=idle.message)
        if replicas < 1:
            clamps = (*clamps, Clamp(name="Idle", before=replicas, after=1, message=idle.message))
            replicas = 1
    least = policy.min_replicas if current == 0 or policy.scale_to_zero is None else 1
    bounded = min(policy.max_replicas, max(least, replicas))
    if bounded != replicas and not wish.hold:
        name = "Maximum" if bounded < replicas else "Minimum"
        text = f"{'max' if bounded < replicas else 'min'}Replicas is {bounded}"
        clamps = (*clamps, Clamp(name=name, before=replicas, after=bounded, message=text))
    return (replicas if wish.hold and current else bounded), clamps, wish


def _findings(
    view: FleetView, policy: ScalingPolicy, wish: _Wish, clamps: tuple[Clamp, ...], current: int
) -> tuple[Finding, ...]:
    """Say in conditions' terms what is known, and what stands in the way."""
    if view.num_unknown:
        status, reason = ("False", "MetricsMissing") if wish.hold else ("True", "SomeMissing")
        text = f"{view.num_unknown} of {len(view.ready)} ready replicas give no figures ({view.missing})"
    elif view.ready and not view.known:
        status, reason, text = "False", "MetricsMissing", "no figures"
    elif wish.hold:
        status, reason, text = "False", "MetricsMissing", wish.hold
    else:
        status, reason = "True", "Available"
        text = f"{len(view.known)} of {len(view.ready)} ready replicas give figures"
    metrics = Finding(
        condition="MetricsAvailable",
        status="False" if status == "False" else "True",
        reason=reason,
        message=text,
    )
    limiting = [c for c in clamps if c.name in {"Maximum", "Minimum", "ScaleUpPace", "ScaleDownPace"}]
    limited = Finding(
        condition="ScalingLimited",
        status="True" if limiting else "False",
        reason=limiting[-1].name if limiting else "WithinLimits",
        message=limiting[-1].message if limiting else f"{current} replicas are within all limits",
    )
    is_active = not wish.hold
    active_finding = Finding(
        condition="ScalingActive",
        status="True" if is_active else "False",
        reason=("Advisory" if policy.mode == "Advisory" else "Deciding") if is_active else "MetricsMissing",
        message=wish.message,
    )
    return metrics, limited, active_finding


def _decision(
    replicas: int,
    wish: _Wish,
    clamps: tuple[Clamp, ...],
    findings: tuple[Finding, ...],
    frame: _Frame,
) -> Decision:
    """Put the decision together, and remember a change of the number."""
    current, state, now = frame.current, frame.state, frame.now
    unclamped = wish.up if wish.up > current else wish.down
    message = wish.message
    if clamps:
        message += f"; wanted {unclamped}, " + ", ".join(clamp.message for clamp in clamps)
    if replicas != current and frame.policy.mode == "Auto":
        entry = HistoryEntry(
            at=now, from_replicas=current, to_replicas=replicas, reason=wish.reason, message=message
        )
        state = replace(
            state,
            history=(entry, *state.history)[:MAX_HISTORY],
            changes=(*state.changes, (now, replicas - current)),
            last_scale_time=now,
        )
    return Decision(
        replicas=replicas,
        reason=wish.reason,
        message=message,
        state=state,
        retry_after_seconds=frame.policy.interval_seconds,
        unclamped_replicas=unclamped,
        terms=wish.terms,
        clamps=clamps,
        findings=findings,
    )
