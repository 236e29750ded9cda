"""What an InferenceService says about routing, as frozen values with the gateway's defaults.

Pure. Knows the fields under spec and status that routing follows. Refuses to check what the API server has
checked; a value of another form raises ValueError, TypeError or AttributeError.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from tidemill_gateway.durations import parse_seconds

PREFIX_AWARE: Final = "PrefixAware"
LEAST_LOAD: Final = "LeastLoad"
DEFAULT_ACTIVATION_TIMEOUT: Final = "5m"
DEFAULT_MAX_BUFFERED: Final = 100
MODE_AUTO: Final = "Auto"

JsonObject = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Waking:
    """How requests wait for a service that scales to zero."""

    timeout_seconds: float
    max_buffered_requests: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one tenant may ask of a service, all gateways together; None is without limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent_requests: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantPolicy:
    """One tenant's share and limits; `priority` is the earliest class it may ask for."""

    name: str
    weight: int = 1
    priority: int = 0
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    """`spec.routing` as far as requests go, and the SLO that requests without one get."""

    strategy: str = PREFIX_AWARE
    max_in_flight_per_replica: int | None = None
    needs_key: bool = False
    limits: Limits = field(default_factory=Limits)
    tenants: tuple[TenantPolicy, ...] = ()
    slo_ttft_ms: int | None = None
    slo_itl_ms: int | None = None

    def policy_of(self, tenant: str) -> TenantPolicy:
        """Give a tenant's policy: its own, or what every tenant has."""
        for policy in self.tenants:
            if policy.name == tenant:
                return policy
        return TenantPolicy(name=tenant, limits=self.limits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Revisions:
    """Which revisions serve, and the share of sessions that tries the new one (None: all replicas alike)."""

    current: str = ""
    update: str = ""
    failed: str = ""
    canary_percent: int | None = None


def parse_waking(spec: JsonObject) -> Waking | None:
    """Read `scaling.scaleToZero`."""
    raw = (spec.get("scaling") or {}).get("scaleToZero")
    if raw is None:
        return None
    return Waking(
        timeout_seconds=parse_seconds(raw.get("activationTimeout", DEFAULT_ACTIVATION_TIMEOUT)),
        max_buffered_requests=int(raw.get("maxBufferedRequests", DEFAULT_MAX_BUFFERED)),
    )


def parse_wants_replicas(spec: JsonObject) -> bool:
    """Say whether replicas are wanted at all: waiting for a suspended service would be in vain."""
    if spec.get("suspend"):
        return False
    return spec.get("replicas") != 0


def parse_routing(spec: JsonObject) -> Routing:
    """Read `routing` and the SLO."""
    raw = spec.get("routing") or {}
    slo = (spec.get("scaling") or {}).get("slo") or {}
    limits = _parse_limits(raw.get("limits"))
    return Routing(
        strategy=str(raw.get("strategy") or PREFIX_AWARE),
        max_in_flight_per_replica=_optional_int(raw.get("maxInFlightPerReplica")),
        needs_key=raw.get("auth") is not None,
        limits=limits,
        tenants=tuple(_parse_tenant(tenant, limits) for tenant in raw.get("tenants") or ()),
        slo_ttft_ms=_milliseconds(slo.get("timeToFirstToken")),
        slo_itl_ms=_milliseconds(slo.get("interTokenLatency")),
    )


def parse_revisions(spec: JsonObject, status: JsonObject) -> Revisions:
    """Read the revisions in status and the canary's share."""
    raw = status.get("revision") or {}
    canary = (spec.get("rollout") or {}).get("canary")
    return Revisions(
        current=str(raw.get("current") or ""),
        update=str(raw.get("update") or ""),
        failed=str(raw.get("failed") or ""),
        canary_percent=None if canary is None else int(canary.get("trafficPercent", 0)),
    )


def parse_activation(status: JsonObject) -> float:
    """Read when somebody last asked for the service to wake, in seconds since 1970; 0 for never."""
    text = (status.get("activation") or {}).get("requestTime")
    return datetime.fromisoformat(str(text)).timestamp() if text else 0.0


def _parse_tenant(raw: JsonObject, common: Limits) -> TenantPolicy:
    own = raw.get("limits")
    return TenantPolicy(
        name=str(raw["name"]),
        weight=int(raw.get("weight", 1)),
        priority=int(raw.get("priority", 0)),
        limits=common if own is None else _parse_limits(own),
    )


def _parse_limits(raw: JsonObject | None) -> Limits:
    raw = raw or {}
    return Limits(
        requests_per_minute=_optional_int(raw.get("requestsPerMinute")),
        tokens_per_minute=_optional_int(raw.get("tokensPerMinute")),
        max_concurrent_requests=_optional_int(raw.get("maxConcurrentRequests")),
    )


def _optional_int(value: object) -> int | None:
    return None if value is None else int(str(value))


def _milliseconds(text: object) -> int | None:
    return None if text is None else max(round(parse_seconds(text) * 1000), 1)
