"""Schedules: times from which a service keeps at least so many replicas. Five-field cron in a time zone.

Knows minute, hour, day of month, month and day of week, with lists, ranges, steps and names; a day matches
if either of its two fields does, where both are restricted, as cron has it. Local times that a clock change
skips do not happen; those that it repeats begin a schedule once more, which changes nothing while it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from tidemill_operator.autoscaling.policy import Schedule

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_FIELDS = ("minute", "hour", "day of month", "month", "day of week")


@dataclass(frozen=True, kw_only=True)
class Cron:
    """The allowed values of each field."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    is_any_day: bool
    is_any_weekday: bool

    def matches_day(self, moment: datetime) -> bool:
        """Say whether a local day is one of those meant."""
        if moment.month not in self.months:
            return False
        day = moment.day in self.days
        weekday = moment.isoweekday() % 7 in self.weekdays
        if self.is_any_day or self.is_any_weekday:
            return day and weekday
        return day or weekday

    def matches(self, moment: datetime) -> bool:
        """Say whether a local minute is one of those meant."""
        is_time = moment.minute in self.minutes and moment.hour in self.hours
        return is_time and self.matches_day(moment)


@lru_cache(maxsize=256)
def parse_cron(text: str) -> Cron:
    """Read five fields; raises ValueError with the field that is wrong."""
    fields = text.split()
    if len(fields) != len(_BOUNDS):
        raise ValueError(f"{text!r} has {len(fields)} fields, not five: minute hour day month weekday")
    minutes, hours, days, months, weekdays = (_values(field, index) for index, field in enumerate(fields))
    return Cron(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        is_any_day=fields[2].startswith("*"),
        is_any_weekday=fields[4].startswith("*"),
    )


def active(schedules: tuple[Schedule, ...], now: float) -> Schedule | None:
    """Return the schedule in force that asks for the most replicas."""
    running = [schedule for schedule in schedules if is_active(schedule, now)]
    return max(running, key=lambda schedule: schedule.min_replicas, default=None)


def is_active(schedule: Schedule, now: float) -> bool:
    """Say whether a schedule began within its duration before now."""
    begun = latest_start(schedule.cron, schedule.timezone, now, schedule.duration_seconds)
    return begun is not None


@lru_cache(maxsize=1024)
def _start_within(cron: str, timezone: str, minute: int, num_minutes: int) -> int | None:
    """Return the latest minute, since the epoch, at which the expression is true, up to so many before."""
    expression, zone = parse_cron(cron), ZoneInfo(timezone)
    at = minute
    while at > minute - num_minutes:
        moment = datetime.fromtimestamp(at * 60, tz=UTC).astimezone(zone)
        if expression.matches(moment):
            return at
        if expression.matches_day(moment):
            at -= 1
        else:
            midnight = moment.replace(hour=0, minute=0)
            at = min(at - 1, int((midnight.astimezone(UTC) - timedelta(minutes=1)).timestamp()) // 60)
    return None


def latest_start(cron: str, timezone: str, now: float, within_seconds: float) -> float | None:
    """Return when the expression was last true, unix seconds, if that is at most so long ago."""
    minute = int(now // 60)
    num_minutes = int(within_seconds // 60) + 1
    start = _start_within(cron, timezone, minute, num_minutes)
    if start is None or now - start * 60 >= within_seconds:
        return None
    return start * 60.0


def _values(field: str, index: int) -> frozenset[int]:
    """Read one field: parts with commas, each `*`, a number, a range, with a step or without."""
    values: set[int] = set()
    for part in field.split(","):
        values.update(_part(part, index))
    return frozenset(values)


def _part(part: str, index: int) -> range:
    low, high = _BOUNDS[index]
    span, _, step_text = part.partition("/")
    if step_text and (not step_text.isdigit() or int(step_text) < 1):
        raise ValueError(f"{_FIELDS[index]} {part!r}: the step must be a positive number")
    step = int(step_text) if step_text else 1
    if span == "*":
        return range(low, high + 1, step)
    first_text, dash, last_text = span.partition("-")
    first = _number(first_text, index)
    last = _number(last_text, index) if dash else (high if step_text else first)
    if not low <= first <= last <= high:
        raise ValueError(f"{_FIELDS[index]} {part!r} must lie within {low} to {high}, in order")
    return range(first, last + 1, step)


def _number(text: str, index: int) -> int:
    names = _MONTHS if index == 3 else _DAYS if index == 4 else ()
    if text.lower() in names:
        return names.index(text.lower()) + (1 if index == 3 else 0)
    if not text.isdigit():
        raise ValueError(f"{_FIELDS[index]} {text!r} is not a number")
    return int(text)
