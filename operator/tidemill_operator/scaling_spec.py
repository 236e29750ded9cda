"""What a person wrote under `spec.scaling`, as the autoscaler's policy.

Pure. Knows the fields, their defaults and the rules between them. Refuses to know replicas and loads.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidemill_operator.autoscaling.policy import (
    Behavior,
    Mode,
    PacePolicy,
    ScaleToZero,
    ScalingPolicy,
    ScalingRules,
    Schedule,
    SloTargets,
)
from tidemill_operator.autoscaling.schedules import parse_cron
from tidemill_operator.durations import parse_duration
from tidemill_operator.errors import InvalidSpec

Raw = Mapping[str, Any]

MODE_AUTO: Final = "Auto"
MODE_ADVISORY: Final = "Advisory"
DEFAULT_KV_CACHE_PERCENT: Final = 80
DEFAULT_QUEUE_LENGTH: Final = 5
DEFAULT_PERCENTILE: Final = 95
DEFAULT_IDLE_AFTER: Final = "10m"
DEFAULT_ACTIVATION_TIMEOUT: Final = "5m"
DEFAULT_MAX_BUFFERED_REQUESTS: Final = 100
DEFAULT_INTERVAL: Final = "5s"
DEFAULT_STALE_AFTER: Final = "15s"
DEFAULT_TIMEZONE: Final = "UTC"

_MODES: Final = get_args(Mode)
_SELECT = Literal["Max", "Min", "Disabled"]
_KINDS = Literal["Pods", "Percent"]


def parse_scaling(raw: Raw | None) -> ScalingPolicy | None:
    """Read spec.scaling; raise InvalidSpec naming the field."""
    if raw is None:
        return None
    low, high = raw.get("minReplicas", 1), raw.get("maxReplicas")
    if not isinstance(high, int):
        raise InvalidSpec("spec.scaling.maxReplicas", "is required")
    mode = raw.get("mode", MODE_AUTO)
    if mode not in _MODES:
        raise InvalidSpec("spec.scaling.mode", f"is {mode!r}; write Auto or Advisory")
    to_zero = _parse_scale_to_zero(raw.get("scaleToZero"))
    _check_bounds(low, high, to_zero, mode)
    targets, metrics = raw.get("targets") or {}, raw.get("metrics") or {}
    schedules = tuple(_parse_schedule(entry) for entry in raw.get("schedules") or ())
    for schedule in schedules:
        if schedule.min_replicas > high:
            problem = f"{schedule.name} wants {schedule.min_replicas} replicas, more than maxReplicas {high}"
            raise InvalidSpec("spec.scaling.schedules", problem)
    return ScalingPolicy(
        mode=mode,
        min_replicas=low,
        max_replicas=high,
        kv_cache_target=targets.get("kvCacheUtilizationPercent", DEFAULT_KV_CACHE_PERCENT) / 100,
        queue_length_per_replica=float(targets.get("queueLengthPerReplica", DEFAULT_QUEUE_LENGTH)),
        slo=_parse_slo(raw.get("slo") or {}),
        behavior=_parse_behavior(raw.get("behavior") or {}),
        scale_to_zero=to_zero,
        schedules=schedules,
        interval_seconds=parse_duration(
            "spec.scaling.metrics.interval", metrics.get("interval", DEFAULT_INTERVAL)
        ),
        stale_after_seconds=parse_duration(
            "spec.scaling.metrics.staleAfter", metrics.get("staleAfter", DEFAULT_STALE_AFTER)
        ),
    )


def _check_bounds(low: int, high: int, to_zero: ScaleToZero | None, mode: str) -> None:
    if low > high:
        raise InvalidSpec("spec.scaling.minReplicas", f"is {low}, which is greater than maxReplicas {high}")
    if low < 0 or (low == 0) != (to_zero is not None):
        problem = f"is {low}; it is 0 if and only if scaleToZero is given"
        raise InvalidSpec("spec.scaling.minReplicas", problem)
    if to_zero is not None and mode != MODE_AUTO:
        raise InvalidSpec("spec.scaling.scaleToZero", "needs mode Auto: nothing would wake the service again")


def _parse_slo(raw: Raw) -> SloTargets:
    return SloTargets(
        time_to_first_token_seconds=_optional_duration("spec.scaling.slo.timeToFirstToken", raw),
        inter_token_seconds=_optional_duration("spec.scaling.slo.interTokenLatency", raw),
        percentile=raw.get("percentile", DEFAULT_PERCENTILE),
    )


def _optional_duration(path: str, raw: Raw) -> float | None:
    text = raw.get(path.rpartition(".")[2])
    if text is None:
        return None
    seconds = parse_duration(path, text)
    if seconds <= 0:
        raise InvalidSpec(path, "must be longer than zero, for example 2s or 100ms")
    return seconds


def _parse_behavior(raw: Raw) -> Behavior:
    return Behavior(
        scale_up=_parse_rules("spec.scaling.behavior.scaleUp", raw.get("scaleUp") or {}),
        scale_down=_parse_rules("spec.scaling.behavior.scaleDown", raw.get("scaleDown") or {}),
    )


def _parse_rules(path: str, raw: Raw) -> ScalingRules:
    select = raw.get("selectPolicy", "Max")
    if select not in get_args(_SELECT):
        raise InvalidSpec(f"{path}.selectPolicy", f"is {select!r}; write Max, Min or Disabled")
    return ScalingRules(
        stabilization_window_seconds=raw.get("stabilizationWindowSeconds"),
        select_policy=select,
        policies=tuple(_parse_pace(f"{path}.policies", entry) for entry in raw.get("policies") or ()),
    )


def _parse_pace(path: str, raw: Raw) -> PacePolicy:
    kind: Any = raw.get("type")
    value, period = raw.get("value"), raw.get("periodSeconds")
    if kind not in get_args(_KINDS):
        raise InvalidSpec(path, f"type is {kind!r}; write Pods or Percent")
    if not isinstance(value, int) or not isinstance(period, int) or value < 1 or period < 1:
        raise InvalidSpec(path, "value and periodSeconds must be whole numbers of at least 1")
    return PacePolicy(kind=kind, value=value, period_seconds=float(period))


def _parse_scale_to_zero(raw: Raw | None) -> ScaleToZero | None:
    if raw is None:
        return None
    path = "spec.scaling.scaleToZero"
    return ScaleToZero(
        idle_after_seconds=parse_duration(f"{path}.idleAfter", raw.get("idleAfter", DEFAULT_IDLE_AFTER)),
        activation_timeout_seconds=parse_duration(
            f"{path}.activationTimeout", raw.get("activationTimeout", DEFAULT_ACTIVATION_TIMEOUT)
        ),
        max_buffered_requests=raw.get("maxBufferedRequests", DEFAULT_MAX_BUFFERED_REQUESTS),
    )


def _parse_schedule(raw: Raw) -> Schedule:
    name, cron = raw.get("name", ""), raw.get("cron", "")
    timezone = raw.get("timezone", DEFAULT_TIMEZONE)
    try:
        parse_cron(cron)
    except ValueError as error:
        raise InvalidSpec(f"spec.scaling.schedules[{name}].cron", str(error)) from error
    try:
        ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        problem = f"{timezone!r} is not a time zone that is known here; write for example Europe/Berlin"
        raise InvalidSpec(f"spec.scaling.schedules[{name}].timezone", problem) from error
    return Schedule(
        name=name,
        timezone=timezone,
        cron=cron,
        duration_seconds=parse_duration(f"spec.scaling.schedules[{name}].duration", raw.get("duration")),
        min_replicas=raw.get("minReplicas", 1),
    )
