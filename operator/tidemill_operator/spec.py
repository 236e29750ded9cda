"""What a person wrote in an InferenceService, as frozen values, and the revision that it amounts to.

Pure. Knows the fields, their defaults and which of them decide what runs in a pod. Refuses to know Kubernetes
objects other than the InferenceService itself. Defaults that reach a pod stand here and not in the schema, so
that a changed default never changes a stored object, hence never a revision.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidemill_operator import names
from tidemill_operator.autoscaling.policy import ScalingPolicy
from tidemill_operator.engine_spec import EngineSpec, ModelSpec, parse_engine, parse_model
from tidemill_operator.errors import InvalidSpec
from tidemill_operator.fields import (
    NO_REPLICA,
    ONE_REPLICA,
    Portion,
    parse_portion,
    parse_quantity,
    whole_seconds,
)
from tidemill_operator.routing_spec import IngressSpec, RouteSpec, hosts_of, parse_ingress, parse_route
from tidemill_operator.scaling_spec import MODE_AUTO, parse_scaling
from tidemill_operator.template_spec import checked_template

__all__ = [
    "EngineSpec",
    "IngressSpec",
    "ModelSpec",
    "Portion",
    "RolloutSpec",
    "RouteSpec",
    "ServiceSpec",
    "hosts_of",
    "parse",
    "revision_of",
    "served_names_of",
]

DEFAULT_DRAIN_TIMEOUT: Final = "5m"
GPU_RESOURCE_SUFFIX: Final = "/gpu"

Raw = Mapping[str, Any]

# A field that is absent must not count, so that a new one changes no existing revision.
_REACHES_PODS: Final = ("model", "engine", "parallelism", "resources", "drain", "template")


@dataclass(frozen=True, kw_only=True)
class CanarySpec:
    """How much of the traffic a new revision gets, and how much of it may fail."""

    traffic_percent: int
    max_error_percent: int = 5


@dataclass(frozen=True, kw_only=True)
class RolloutSpec:
    """How far a rollout may go above and below the desired number of replicas.

    `canary` is None where a new revision is to take over; `to_revision` runs a former one in the spec's
    place.
    """

    max_surge: Portion = ONE_REPLICA
    max_unavailable: Portion = NO_REPLICA
    canary: CanarySpec | None = None
    to_revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class ServiceSpec:
    """One InferenceService's spec, checked and with its defaults."""

    model: ModelSpec
    revision: str
    engine: EngineSpec = field(default_factory=EngineSpec)
    tensor_parallel_size: int | None = None
    resources: Raw = field(default_factory=dict)
    template: Raw = field(default_factory=dict)
    replicas: int | None = None
    scaling: ScalingPolicy | None = None
    ingress: IngressSpec | None = None
    route: RouteSpec | None = None
    rollout: RolloutSpec = field(default_factory=RolloutSpec)
    drain_timeout_seconds: int = 300
    disruption_max_unavailable: Portion = ONE_REPLICA
    suspend: bool = False

    @property
    def target_revision(self) -> str:
        """Give the revision that should run: the spec's own, unless a former one is asked for."""
        return self.rollout.to_revision or self.revision

    @property
    def num_gpus(self) -> int:
        """Count the GPUs of any vendor that a replica asks for."""
        asked = {**(self.resources.get("requests") or {}), **(self.resources.get("limits") or {})}
        counts = (count for name, count in asked.items() if name.endswith(GPU_RESOURCE_SUFFIX))
        return sum(parse_quantity("spec.resources", count) for count in counts)


def parse(service: Raw) -> ServiceSpec:
    """Read an InferenceService as the API returns it; raise InvalidSpec naming the field."""
    name = service["metadata"]["name"]
    if len(name) > names.MAX_SERVICE_NAME_LENGTH:
        raise InvalidSpec("metadata.name", f"must have at most {names.MAX_SERVICE_NAME_LENGTH} characters")
    raw: Raw = service.get("spec") or {}
    spec = ServiceSpec(
        model=parse_model(raw.get("model") or {}, name),
        revision=revision_of(service),
        engine=parse_engine(raw.get("engine") or {}),
        tensor_parallel_size=(raw.get("parallelism") or {}).get("tensor"),
        resources=raw.get("resources") or {},
        template=checked_template(raw.get("template") or {}),
        replicas=raw.get("replicas"),
        scaling=parse_scaling(raw.get("scaling")),
        ingress=parse_ingress(raw.get("routing") or {}),
        route=parse_route(raw.get("routing") or {}),
        rollout=_parse_rollout(raw.get("rollout") or {}),
        drain_timeout_seconds=whole_seconds(
            "spec.drain.timeout", (raw.get("drain") or {}).get("timeout", DEFAULT_DRAIN_TIMEOUT)
        ),
        disruption_max_unavailable=parse_portion(
            "spec.disruption.maxUnavailable", (raw.get("disruption") or {}).get("maxUnavailable", 1)
        ),
        suspend=bool(raw.get("suspend", False)),
    )
    _check_who_decides(spec)
    _check_gpus(spec)
    return spec


def revision_of(service: Raw) -> str:
    """Hash what the person wrote that decides what runs in a pod, and only that."""
    raw: Raw = service.get("spec") or {}
    annotations = service["metadata"].get("annotations") or {}
    written = {key: raw[key] for key in _REACHES_PODS if raw.get(key)}
    restarted_at = annotations.get(names.ANNOTATION_RESTARTED_AT)
    if restarted_at:
        written["restartedAt"] = restarted_at
    canonical = json.dumps(written, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[: names.REVISION_LENGTH]


def served_names_of(service: Raw) -> tuple[str, ...]:
    """Give the model names that a service claims, even when the rest of its spec is invalid."""
    served = ((service.get("spec") or {}).get("model") or {}).get("servedNames")
    return tuple(served) if served else (service["metadata"]["name"],)


def _parse_rollout(raw: Raw) -> RolloutSpec:
    surge = parse_portion("spec.rollout.maxSurge", raw.get("maxSurge", 1))
    unavailable = parse_portion("spec.rollout.maxUnavailable", raw.get("maxUnavailable", 0))
    if surge.amount == 0 and unavailable.amount == 0:
        raise InvalidSpec("spec.rollout", "maxSurge and maxUnavailable must not both be zero")
    return RolloutSpec(
        max_surge=surge,
        max_unavailable=unavailable,
        canary=_parse_canary(raw.get("canary")),
        to_revision=raw.get("toRevision"),
    )


def _parse_canary(raw: Raw | None) -> CanarySpec | None:
    """Read the canary's share; all of the traffic is no canary any more."""
    if raw is None:
        return None
    percent, errors = raw.get("trafficPercent"), raw.get("maxErrorPercent", 5)
    if not isinstance(percent, int) or not 1 <= percent <= 100:
        raise InvalidSpec(
            "spec.rollout.canary.trafficPercent", f"is {percent!r}; write a number from 1 to 100"
        )
    if not isinstance(errors, int) or not 0 <= errors <= 100:
        raise InvalidSpec(
            "spec.rollout.canary.maxErrorPercent", f"is {errors!r}; write a number from 0 to 100"
        )
    return None if percent == 100 else CanarySpec(traffic_percent=percent, max_error_percent=errors)


def _check_gpus(spec: ServiceSpec) -> None:
    """Refuse a model in parts on another number of GPUs, of any vendor; without GPUs parts share the CPU."""
    num_gpus = spec.num_gpus
    if spec.tensor_parallel_size is not None and num_gpus not in {0, spec.tensor_parallel_size}:
        raise InvalidSpec(
            "spec.resources.limits",
            f"must ask for as many GPUs as spec.parallelism.tensor says, {spec.tensor_parallel_size}",
        )


def _check_who_decides(spec: ServiceSpec) -> None:
    auto = spec.scaling is not None and spec.scaling.mode == MODE_AUTO
    if auto and spec.replicas is not None:
        raise InvalidSpec("spec.replicas", "must be absent while scaling.mode is Auto, which decides it")
    if not auto and spec.replicas is None:
        raise InvalidSpec("spec.replicas", "is required without scaling and with scaling.mode Advisory")
