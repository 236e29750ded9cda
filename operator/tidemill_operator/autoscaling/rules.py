"""The rules that a wish goes through: windows, pace, schedules, zero, minimum and maximum.

Each says what it changed. Pure: the number, the rules that changed it and what is to be remembered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tidemill_operator.autoscaling import behavior, fleet_view, learn, zero
from tidemill_operator.autoscaling.decision import Clamp, ScalingState, Term
from tidemill_operator.autoscaling.fleet_view import FleetView
from tidemill_operator.autoscaling.gather import DEFAULT_CONCURRENCY
from tidemill_operator.autoscaling.model import FleetLoad
from tidemill_operator.autoscaling.policy import ScalingPolicy
from tidemill_operator.autoscaling.schedules import active

WINDOW_PER_STARTUP, LEVEL_WINDOW_PER_STARTUP = 0.1, 0.25
QUEUE_WINDOW = 30.0
"""What queues asked for is kept so long; what arrivals asked for, for the whole window."""
SHORTEST_WINDOW, SHORTEST_LEVEL_WINDOW, LONGEST_WINDOW = 10.0, 20.0, 300.0
"""A fall out of a quarter of an hour that as a whole is a level must last longer to be believed."""
LEVEL_WINDOW = 600.0
"""A single replica too many is kept so long while the load is level: by chance alone one comes and goes."""
STEADY_SECONDS, STEADY_PART = 3600.0, 4
"""And for so long after the number changed: a level load should change it once an hour at most. So is a
fourth of them, where half an hour was a level."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the signals want: at least `up`, and `down` would do with a margin."""

    up: int
    down: int
    lasting: int
    """The part of `down` that does not come from a queue: queues go, their load may come again."""
    reason: str
    message: str
    terms: tuple[Term, ...] = ()
    may_shrink: bool = True
    was_level: bool = False
    """Whether the last quarter of an hour, or as long as was measured, is a level as a whole, whatever its
    last minutes look like."""
    is_steady: bool = False
    """Whether the last half hour is one, too."""
    hold: str = ""
    """Why nothing may change at all; empty: it may."""


def apply_rules(
    wish: Wish, current: int, policy: ScalingPolicy, state: ScalingState, now: float
) -> tuple[int, tuple[Clamp, ...], ScalingState]:
    """Put the wish through windows, pace, schedules and bounds, and remember it."""
    window = behavior.windows(policy.behavior, _default_window(wish, state))
    is_given = policy.behavior.scale_down.stabilization_window_seconds is not None
    held: tuple[Clamp, ...] = ()
    if not is_given and wish.was_level and not wish.hold:
        if max(wish.down, wish.lasting) == current - 1:
            window = replace(window, down=max(window.down, LEVEL_WINDOW))
        wish, held = _steadied(wish, current, state, now)
    keep = max(window.up, window.down, LEVEL_WINDOW) + policy.interval_seconds
    known_up = behavior.begun(state.wanted_up, now, current, max(window.up, 3 * policy.interval_seconds))
    past_up = behavior.remember(known_up if window.up else (), now, wish.up, keep)
    past_down = behavior.remember(state.wanted, now, wish.down if is_given else wish.lasting, keep)
    lately = behavior.remember(state.memory.wanted_down, now, wish.down, min(window.down, QUEUE_WINDOW))
    periods = (
        behavior.longest_period(rules) for rules in (policy.behavior.scale_up, policy.behavior.scale_down)
    )
    longest = max(periods)
    changes = tuple(c for c in state.changes if c[0] > now - longest)
    state = replace(
        state,
        wanted=past_down,
        wanted_up=past_up if window.up else (),
        changes=changes,
        memory=replace(state.memory, wanted_down=lately),
    )
    if wish.hold:
        return current, (), state
    down = max(wanted for _, wanted in lately)
    down = down if wish.may_shrink else max(down, current)
    steady = behavior.stabilized(current, wish.up, down, (past_up, past_down), window)
    slow = behavior.paced(current, steady.replicas, changes, now, policy.behavior)
    clamps = [*held, *steady.clamps, *slow.clamps]
    if not wish.may_shrink and wish.down < current:
        text = "nothing is removed while requests wait, nor before it is known what arrives and is carried"
        clamps.insert(0, Clamp(name="RequestsWait", before=wish.down, after=down, message=text))
    replicas = slow.replicas
    floor = active(policy.schedules, now)
    if floor is not None and replicas < floor.min_replicas:
        text = f"schedule {floor.name} asks for at least {floor.min_replicas}"
        clamps.append(Clamp(name="Schedule", before=replicas, after=floor.min_replicas, message=text))
        replicas = floor.min_replicas
    return replicas, tuple(clamps), state


def _steadied(wish: Wish, current: int, state: ScalingState, now: float) -> tuple[Wish, tuple[Clamp, ...]]:
    """Keep some replicas too many until an hour after the number last changed: they could be needed again."""
    last = state.history[0] if state.history else None
    is_recent = last is not None and last.to_replicas == current and now - last.at < STEADY_SECONDS
    asked = max(wish.down, wish.lasting)
    if not is_recent or asked >= current:
        return wish, ()
    kept = min(current, asked + (math.ceil(current / STEADY_PART) if wish.is_steady else 1))
    text = f"the load is level and the number has changed within {STEADY_SECONDS / 60:.0f} minutes"
    clamp = Clamp(name="StabilizationWindow", before=asked, after=kept, message=text)
    return replace(wish, down=kept, lasting=kept), (clamp,)


def _default_window(wish: Wish, state: ScalingState) -> float:
    """Return the window for scaling down that counts where the user gives none, in seconds."""
    startup = state.learned.startup_seconds or learn.DEFAULT_STARTUP_SECONDS
    share, shortest = (
        (LEVEL_WINDOW_PER_STARTUP, SHORTEST_LEVEL_WINDOW)
        if wish.was_level
        else (WINDOW_PER_STARTUP, SHORTEST_WINDOW)
    )
    return min(LONGEST_WINDOW, max(shortest, share * startup))


def apply_zero(
    load: FleetLoad,
    view: FleetView,
    policy: ScalingPolicy,
    state: ScalingState,
    so_far: tuple[int, tuple[Clamp, ...], Wish],
) -> tuple[int, tuple[Clamp, ...], Wish]:
    """Wake from zero, go to zero, and keep within minimum and maximum."""
    replicas, clamps, wish = so_far
    current = fleet_view.current_replicas(load, view)
    floor = active(policy.schedules, load.at)
    if current == 0:
        concurrency = state.learned.concurrency or DEFAULT_CONCURRENCY
        woken = zero.wake(load, view, policy, concurrency, state.last_scale_time)
        if woken:
            text = f"{view.held_requests} requests are held for a service at zero"
            text = text if view.held_requests else "a gateway asks for a service at zero"
            wish = replace(wish, up=woken, down=woken, reason="Activation", message=text, hold="")
            replicas = max(replicas, woken)
    elif policy.scale_to_zero is not None and replicas <= 1 and not wish.hold:
        idle = zero.idleness(load, view, policy, state.last_request_time)
        if idle.may_go and floor is None:
            return 0, (), replace(wish, up=0, down=0, reason="Idle", message=idle.message)
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
