"""`desired_replicas`: one load, one policy, what is remembered and the time, and out comes a decision.

The order: who counts; what was counted since; what is learned; a candidate from each signal, on the way up
as it is and on the way down with a margin; then the rules (window, pace, schedules, bounds), each of which
says what it changed. Returns a number and reasons: nothing here writes, waits or asks for the time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemill_operator.autoscaling import fleet_view, objectives, recurrence, zero
from tidemill_operator.autoscaling.decision import (
    Clamp,
    Decision,
    Finding,
    HistoryEntry,
    ScalingState,
    Term,
)
from tidemill_operator.autoscaling.findings import Said, findings_of
from tidemill_operator.autoscaling.fleet_view import FleetView
from tidemill_operator.autoscaling.gather import gather
from tidemill_operator.autoscaling.model import FleetLoad
from tidemill_operator.autoscaling.policy import ScalingPolicy
from tidemill_operator.autoscaling.rules import Wish, apply_rules, apply_zero
from tidemill_operator.autoscaling.terms import Facts, all_terms

DOWN_MARGIN = 1.1
WATCH_SECONDS, IDLE_WATCH_SECONDS, UNKNOWN_WATCH_SECONDS = 60.0, 20.0, 900.0
"""Nothing is removed before arrivals were watched for so long; the less while no request is anywhere, the
more while too few requests have ended to say what a replica carries."""
MAX_HISTORY = 5


def desired_replicas(load: FleetLoad, policy: ScalingPolicy, state: ScalingState, now: float) -> Decision:
    """Decide how many replicas there should be at `now`."""
    view = fleet_view.view(load, policy)
    learned, memory, facts = gather(load, view, policy, state)
    state = replace(
        state,
        learned=learned,
        memory=memory,
        last_request_time=zero.last_request_time(state.last_request_time, load, view),
    )
    current = fleet_view.current_replicas(load, view)
    measured = objectives.latencies(memory, policy)
    wish, bursts = _with_recurring(_wish(view, facts, current), facts, state, now)
    state = replace(state, memory=replace(state.memory, bursts=bursts))
    replicas, clamps, state = apply_rules(wish, current, policy, state, now)
    replicas, clamps, wish = apply_zero(load, view, policy, state, (replicas, clamps, wish))
    findings = findings_of(view, policy, Said(hold=wish.hold, message=wish.message, clamps=clamps), current)
    slo = objectives.finding(measured, policy, may_help=bool(wish.terms) and _may_help(facts))
    slo, verdict = objectives.steadied(slo, policy, memory.verdict, now)
    state = replace(state, memory=replace(state.memory, verdict=verdict))
    decision = _decision(
        replicas,
        wish,
        clamps,
        (*findings, *((slo,) if slo else ())),
        _Frame(current=current, policy=policy, state=state, now=now),
    )
    return replace(
        decision,
        time_to_first_token_seconds=measured.first_token,
        inter_token_seconds=measured.inter_token,
    )


def _may_help(facts: Facts) -> bool:
    """Say whether more replicas may bring first tokens sooner: there is a queue, and they are in reach."""
    has_backlog = facts.waiting + facts.held > 0 or facts.smooth_backlog_tokens >= 1.0
    return has_backlog and (facts.capacity is None or facts.capacity.lost == 0)


@dataclass(frozen=True, kw_only=True)
class _Frame:
    current: int
    policy: ScalingPolicy
    state: ScalingState
    now: float


def _wish(view: FleetView, facts: Facts, current: int) -> Wish:
    """Let every signal say its number; hold where too little is known."""
    hold = _hold(view, current)
    if hold:
        return Wish(
            up=current, down=current, lasting=current, reason="MetricsMissing", message=hold, hold=hold
        )
    up_terms = all_terms(facts)
    down_terms = all_terms(replace(facts, margin=DOWN_MARGIN))
    if not up_terms and not view.known:
        text = "no replica is ready yet" if current else "the service is at zero"
        return Wish(
            up=current,
            down=current,
            lasting=current,
            reason="Starting" if current else "AtZero",
            message=text,
        )
    best = max(up_terms, key=lambda term: term.replicas)
    up = best.replicas
    down = max(up, max((term.replicas for term in down_terms), default=0))
    watch = _watch_seconds(view, facts)
    is_free = view.num_waiting == 0 and view.held_requests == 0 and view.is_every_gateway_known
    if up <= current:
        best = max(down_terms or up_terms, key=lambda term: term.replicas)
    return Wish(
        up=up,
        down=down,
        lasting=_lasting((*up_terms, *down_terms), down),
        reason=best.signal,
        message=best.message,
        terms=up_terms,
        was_level=facts.rate is not None and facts.rate.was_level and facts.rate.measured > 0,
        is_steady=facts.rate is not None and facts.rate.is_steady,
        may_shrink=is_free and facts.rate is not None and facts.rate.seconds >= watch - 1,
    )


def _watch_seconds(view: FleetView, facts: Facts) -> float:
    """Return how long arrivals must have been watched before anything is removed."""
    if not zero.is_busy(view):
        return IDLE_WATCH_SECONDS
    is_to_be_known = facts.step_times is not None and facts.capacity is None
    return UNKNOWN_WATCH_SECONDS if is_to_be_known else WATCH_SECONDS


def _with_recurring(
    wish: Wish, facts: Facts, state: ScalingState, now: float
) -> tuple[Wish, recurrence.Bursts]:
    """Be ready for a burst that is due, while so many requests are late that it is worth it."""
    allowed = facts.policy.queue_length_per_replica * max(1, facts.num_ready)
    bursts, is_over = state.memory.bursts, facts.waiting + facts.held > allowed
    ahead = facts.startup_seconds + facts.policy.interval_seconds
    expected = recurrence.due(bursts, now, ahead)
    spent = objectives.spent(state.memory, facts.policy)
    if expected is None or wish.hold:
        return wish, recurrence.noted(bursts, now, wish.lasting, is_over=is_over)
    # A burst that was prepared for makes no queue.
    has_come = now > expected.at and wish.lasting >= expected.replicas
    bursts = recurrence.noted(bursts, now, wish.lasting, is_over=is_over or has_come)
    if spent is None or spent <= 1.0 or expected.replicas <= wish.up:
        return wish, bursts
    text = f"bursts come again and again; the next is due in {max(0.0, expected.at - now):.0f} s"
    return replace(
        wish,
        up=expected.replicas,
        down=max(wish.down, expected.replicas),
        lasting=max(wish.lasting, expected.replicas),
        reason="RecurringBurst",
        message=f"{text} and needs {expected.replicas} replicas",
    ), bursts


def _lasting(terms: tuple[Term, ...], down: int) -> int:
    """Return what the load asks for apart from queues; all of it where the load's rate is not known."""
    steady = [t.replicas for t in terms if t.signal in {"ArrivalRate", "InterTokenLatency"}]
    is_known = any(t.signal == "ArrivalRate" for t in terms)
    return min(down, max(steady)) if is_known else down


def _hold(view: FleetView, current: int) -> str:
    """Say why nothing may change: missing is neither zero nor the last value."""
    if view.ready and view.is_mostly_unknown:
        return f"{view.num_unknown} of {len(view.ready)} ready replicas give no figures ({view.missing})"
    if current == 0 and not view.is_every_gateway_known:
        return "the service is at zero and a gateway does not answer"
    return ""


def _decision(
    replicas: int,
    wish: Wish,
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
