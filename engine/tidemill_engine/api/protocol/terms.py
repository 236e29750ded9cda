"""On what terms a request is served: its tenant and that one's share, its class, the latencies it asks for.

Knows field and header names and ranges. Whether a sender may name tenant or class is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemill_engine.api.protocol.fields import Fields, Range
from tidemill_engine.errors import InvalidRequest

TENANT_HEADER = "x-tidemill-tenant"
PRIORITY_HEADER = "x-tidemill-priority"
WEIGHT_HEADER = "x-tidemill-weight"
SLO_TTFT_HEADER = "x-tidemill-slo-ttft-ms"
SLO_ITL_HEADER = "x-tidemill-slo-itl-ms"
MAX_TENANT_CHARACTERS = 128
MAX_PRIORITY = 1_000_000
WEIGHT = Range(low=0.001, high=1000)
SLO_MILLISECONDS = Range(low=1, high=86_400_000)


@dataclass(frozen=True, kw_only=True)
class ServiceTerms:
    """What the scheduler is told of a request beside its tokens; the least priority is served first.

    `tenant_weight` is None where nobody says, so that the engine's own configuration counts.
    """

    tenant: str = ""
    tenant_weight: float | None = None
    priority: int = 0
    ttft_slo_seconds: float | None = None
    itl_slo_seconds: float | None = None


def parse_terms(fields: Fields, headers: Mapping[str, str], *, tenant: str, is_trusted: bool) -> ServiceTerms:
    """Read the terms; the key's `tenant` wins, headers name tenant, share and class only where trusted."""
    priority, weight = 0, None
    if is_trusted:
        tenant = tenant or _tenant(headers.get(TENANT_HEADER, ""))
        weight = _number(headers, WEIGHT_HEADER, WEIGHT)
        priority = _priority(headers.get(PRIORITY_HEADER))
    slo = fields.object("slo") or Fields({}, "slo")
    return ServiceTerms(
        tenant=tenant,
        tenant_weight=weight,
        priority=priority,
        ttft_slo_seconds=_slo(slo, "ttft_ms", headers, SLO_TTFT_HEADER),
        itl_slo_seconds=_slo(slo, "itl_ms", headers, SLO_ITL_HEADER),
    )


def is_tenant_name(name: str) -> bool:
    """Say whether a name can be a tenant's: printable, of bounded length."""
    return 0 < len(name) <= MAX_TENANT_CHARACTERS and name.isprintable()


def _tenant(name: str) -> str:
    name = name.strip()
    if name and not is_tenant_name(name):
        rule = f"must be at most {MAX_TENANT_CHARACTERS} printable characters"
        raise InvalidRequest(f"the header {TENANT_HEADER} {rule}", param=TENANT_HEADER)
    return name


def _priority(text: str | None) -> int:
    if text is None:
        return 0
    try:
        value = int(text)
    except ValueError:
        value = MAX_PRIORITY + 1
    if not -MAX_PRIORITY <= value <= MAX_PRIORITY:
        rule = f"must be an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}"
        raise InvalidRequest(f"the header {PRIORITY_HEADER} {rule}", param=PRIORITY_HEADER)
    return value


def _slo(slo: Fields, key: str, headers: Mapping[str, str], header: str) -> float | None:
    """Read one latency in seconds: the body's, else the header's."""
    if slo.get(key) is not None:
        return slo.number(key, SLO_MILLISECONDS, default=0.0) / 1000
    value = _number(headers, header, SLO_MILLISECONDS)
    return None if value is None else value / 1000


def _number(headers: Mapping[str, str], header: str, allowed: Range) -> float | None:
    text = headers.get(header)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if value not in allowed:
        raise InvalidRequest(f"the header {header} must be a number {allowed}", param=header)
    return value
