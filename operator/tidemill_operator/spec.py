"""What a person wrote in an InferenceService, as frozen values, and the revision that it amounts to.

Pure. Knows the fields, their defaults and which of them decide what runs in a pod. Refuses to know Kubernetes
objects other than the InferenceService itself. Defaults that reach a pod stand here and not in the schema, so
that a changed default never changes a stored object, hence never a revision.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidemill_operator import names
from tidemill_operator.autoscaling.policy import ScalingPolicy
from tidemill_operator.durations import parse_duration
from tidemill_operator.errors import InvalidSpec
from tidemill_operator.scaling_spec import MODE_AUTO, parse_scaling

SCHEMES: Final = ("builtin", "file", "sim")
SCHEMES_LATER: Final = ("hf", "pvc", "oci", "s3", "gs")
DEFAULT_LOAD_TIMEOUT: Final = "30m"
DEFAULT_DRAIN_TIMEOUT: Final = "5m"

_PORTION: Final = re.compile(r"^(100|[1-9]?[0-9])%$")

Raw = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Portion:
    """A number of replicas, or a share of them in percent."""

    amount: int
    is_percent: bool = False

    def of(self, total: int, *, round_up: bool) -> int:
        """Give the number of replicas that this is of a total."""
        if not self.is_percent:
            return self.amount
        exact = self.amount * total
        return -(-exact // 100) if round_up else exact // 100

    def as_written(self) -> int | str:
        """Give the value in the API's int-or-string form."""
        return f"{self.amount}%" if self.is_percent else self.amount


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Which model is served, and under which names."""

    uri: str
    served_names: tuple[str, ...]
    load_timeout_seconds: int


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """How the engine runs; what is None is the engine's own choice."""

    image: str | None = None
    args: tuple[str, ...] = ()
    env: tuple[Raw, ...] = ()
    dtype: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class IngressSpec:
    """How the service is reached from outside."""

    host: str
    class_name: str | None = None
    tls_secret_name: str | None = None


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

    max_surge: Portion = Portion(amount=1)
    max_unavailable: Portion = Portion(amount=0)
    canary: CanarySpec | None = None
    to_revision: str | None = None


@dataclass(frozen=True, kw_only=True)
class ServiceSpec:
    """One InferenceService's spec, checked and with its defaults."""

    model: ModelSpec
    revision: str
    engine: EngineSpec = field(default_factory=EngineSpec)
    resources: Raw = field(default_factory=dict)
    replicas: int | None = None
    scaling: ScalingPolicy | None = None
    ingress: IngressSpec | None = None
    rollout: RolloutSpec = field(default_factory=RolloutSpec)
    drain_timeout_seconds: int = 300
    disruption_max_unavailable: Portion = Portion(amount=1)
    suspend: bool = False

    @property
    def target_revision(self) -> str:
        """Give the revision that should run: the spec's own, unless a former one is asked for."""
        return self.rollout.to_revision or self.revision


def parse(service: Raw) -> ServiceSpec:
    """Read an InferenceService as the API returns it; raise InvalidSpec naming the field."""
    name = service["metadata"]["name"]
    if len(name) > names.MAX_SERVICE_NAME_LENGTH:
        raise InvalidSpec("metadata.name", f"must have at most {names.MAX_SERVICE_NAME_LENGTH} characters")
    raw: Raw = service.get("spec") or {}
    spec = ServiceSpec(
        model=_parse_model(raw.get("model") or {}, name),
        revision=revision_of(service),
        engine=_parse_engine(raw.get("engine") or {}),
        resources=raw.get("resources") or {},
        replicas=raw.get("replicas"),
        scaling=parse_scaling(raw.get("scaling")),
        ingress=_parse_ingress((raw.get("routing") or {}).get("ingress")),
        rollout=_parse_rollout(raw.get("rollout") or {}),
        drain_timeout_seconds=_whole_seconds(
            "spec.drain.timeout", (raw.get("drain") or {}).get("timeout", DEFAULT_DRAIN_TIMEOUT)
        ),
        disruption_max_unavailable=_parse_portion(
            "spec.disruption.maxUnavailable", (raw.get("disruption") or {}).get("maxUnavailable", 1)
        ),
        suspend=bool(raw.get("suspend", False)),
    )
    _check_who_decides(spec)
    return spec


def revision_of(service: Raw) -> str:
    """Hash what the person wrote that decides what runs in a pod, and only that."""
    raw: Raw = service.get("spec") or {}
    annotations = service["metadata"].get("annotations") or {}
    written = {key: raw[key] for key in ("model", "engine", "resources", "drain") if raw.get(key)}
    restarted_at = annotations.get(names.ANNOTATION_RESTARTED_AT)
    if restarted_at:
        written["restartedAt"] = restarted_at
    canonical = json.dumps(written, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[: names.REVISION_LENGTH]


def served_names_of(service: Raw) -> tuple[str, ...]:
    """Give the model names that a service claims, even when the rest of its spec is invalid."""
    served = ((service.get("spec") or {}).get("model") or {}).get("servedNames")
    return tuple(served) if served else (service["metadata"]["name"],)


def ingress_host_of(service: Raw) -> str | None:
    """Give the host that a service claims, even when the rest of its spec is invalid."""
    routing = (service.get("spec") or {}).get("routing") or {}
    host: str | None = (routing.get("ingress") or {}).get("host")
    return host


def _whole_seconds(path: str, text: object) -> int:
    return math.ceil(parse_duration(path, text))


def _parse_model(raw: Raw, name: str) -> ModelSpec:
    uri = raw.get("uri")
    if not isinstance(uri, str) or not uri:
        raise InvalidSpec("spec.model.uri", "is required, for example builtin://smollm2-135m")
    if uri.partition("://")[0] not in SCHEMES:
        works = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        later = ", ".join(f"{scheme}://" for scheme in SCHEMES_LATER)
        raise InvalidSpec(
            "spec.model.uri", f"{uri!r} must begin with one of {works}; {later} are not supported yet"
        )
    load_timeout = _whole_seconds("spec.model.loadTimeout", raw.get("loadTimeout", DEFAULT_LOAD_TIMEOUT))
    if load_timeout < 1:
        raise InvalidSpec("spec.model.loadTimeout", "must be at least 1s")
    served_names = tuple(raw.get("servedNames") or (name,))
    return ModelSpec(uri=uri, served_names=served_names, load_timeout_seconds=load_timeout)


def _parse_engine(raw: Raw) -> EngineSpec:
    return EngineSpec(
        image=raw.get("image"),
        args=tuple(raw.get("args") or ()),
        env=tuple(raw.get("env") or ()),
        dtype=raw.get("dtype"),
        max_model_len=raw.get("maxModelLen"),
        max_num_seqs=raw.get("maxNumSeqs"),
        max_num_batched_tokens=raw.get("maxNumBatchedTokens"),
        block_size=(raw.get("kvCache") or {}).get("blockSize"),
    )


def _parse_ingress(raw: Raw | None) -> IngressSpec | None:
    if raw is None:
        return None
    host = raw.get("host")
    if not isinstance(host, str) or not host:
        raise InvalidSpec("spec.routing.ingress.host", "is required, for example chat.example.com")
    tls_secret_name = (raw.get("tls") or {}).get("secretName")
    return IngressSpec(host=host, class_name=raw.get("className"), tls_secret_name=tls_secret_name)


def _parse_rollout(raw: Raw) -> RolloutSpec:
    surge = _parse_portion("spec.rollout.maxSurge", raw.get("maxSurge", 1))
    unavailable = _parse_portion("spec.rollout.maxUnavailable", raw.get("maxUnavailable", 0))
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


def _parse_portion(path: str, value: object) -> Portion:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Portion(amount=value)
    if isinstance(value, str) and _PORTION.match(value):
        return Portion(amount=int(value[:-1]), is_percent=True)
    raise InvalidSpec(path, f"{value!r} is neither a number nor a percentage such as 25%")


def _check_who_decides(spec: ServiceSpec) -> None:
    auto = spec.scaling is not None and spec.scaling.mode == MODE_AUTO
    if auto and spec.replicas is not None:
        raise InvalidSpec("spec.replicas", "must be absent while scaling.mode is Auto, which decides it")
    if not auto and spec.replicas is None:
        raise InvalidSpec("spec.replicas", "is required without scaling and with scaling.mode Advisory")
