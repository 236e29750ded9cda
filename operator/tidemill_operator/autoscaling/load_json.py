"""A recorded load: one `FleetLoad` a line, as JSON, for `tidemill-bench replay`.

The first line may be `{"scaling": {...}}`: `spec.scaling` as it was. Every other line is the load's fields by
their names. What has no bound is null, so that the file is plain JSON. No secret, address or prompt is in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tidemill_operator.autoscaling.model import (
    EngineFigures,
    FleetLoad,
    GatewayDemand,
    GatewayLoad,
    Histogram,
    ReplicaLoad,
    StepTimes,
)


class RecordingError(ValueError):
    """A line that is no recorded load."""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What a file holds."""

    scaling: Mapping[str, Any] | None
    loads: tuple[FleetLoad, ...]


def header(scaling: Mapping[str, Any]) -> str:
    """Return the first line."""
    return json.dumps({"scaling": scaling}, separators=(",", ":"))


def to_line(load: FleetLoad) -> str:
    """Return a load as one line."""
    return json.dumps(_finite(asdict(load)), separators=(",", ":"))


def read(lines: Iterable[str]) -> Recording:
    """Read a file; raises RecordingError with the number of the line that is wrong."""
    scaling: Mapping[str, Any] | None = None
    loads = []
    for number, plain in _objects(lines):
        if "scaling" in plain and "at" not in plain:
            scaling = plain["scaling"]
            continue
        try:
            loads.append(_load(plain))
        except (TypeError, KeyError, AttributeError) as error:
            raise RecordingError(f"line {number} is no recorded load: {error!r}") from error
    return Recording(scaling=scaling, loads=tuple(loads))


def _objects(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            plain = json.loads(line)
        except ValueError as error:
            raise RecordingError(f"line {number} is not JSON: {error}") from error
        if not isinstance(plain, dict):
            raise RecordingError(f"line {number} is not an object")
        yield number, plain


def _load(plain: dict[str, Any]) -> FleetLoad:
    return FleetLoad(
        **{
            **plain,
            "replicas": tuple(_replica(replica) for replica in plain["replicas"]),
            "gateways": tuple(_gateway(gateway) for gateway in plain["gateways"]),
        }
    )


def _replica(plain: dict[str, Any]) -> ReplicaLoad:
    figures = plain.get("figures")
    return ReplicaLoad(**{**plain, "figures": None if figures is None else _figures(figures)})


def _figures(plain: dict[str, Any]) -> EngineFigures:
    times = plain.get("step_times")
    return EngineFigures(
        **{
            **plain,
            "time_to_first_token": _histogram(plain.get("time_to_first_token")),
            "inter_token": _histogram(plain.get("inter_token")),
            "step_times": None if times is None else StepTimes(**times),
        }
    )


def _histogram(plain: dict[str, Any] | None) -> Histogram | None:
    if plain is None:
        return None
    bounds = tuple(math.inf if bound is None else float(bound) for bound in plain["upper_bounds_seconds"])
    return Histogram(upper_bounds_seconds=bounds, cumulative_counts=tuple(plain["cumulative_counts"]))


def _gateway(plain: dict[str, Any]) -> GatewayLoad:
    demand = plain.get("demand")
    return GatewayLoad(**{**plain, "demand": None if demand is None else GatewayDemand(**demand)})


def _finite(value: Any) -> Any:
    """Return the value with null for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
