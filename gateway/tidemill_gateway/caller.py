"""Who asks, and what the engine is told about it.

Pure. Knows keys by their hashes, tenants' policies, and the headers by which engines learn of tenant, share,
class and SLO. Refuses to know sockets and bodies. Engines believe these headers from a gateway alone, which
they know by a token; from clients the gateway takes none of them as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tidemill_gateway.keys import KeyRing, bearer_token
from tidemill_gateway.service_spec import Routing, TenantPolicy

TENANT_HEADER: Final = "x-tidemill-tenant"
PRIORITY_HEADER: Final = "x-tidemill-priority"
WEIGHT_HEADER: Final = "x-tidemill-weight"
FORMER_TOKEN_HEADER: Final = "x-tidemill-former-token"  # noqa: S105 - a header's name
SLO_TTFT_HEADER: Final = "x-tidemill-slo-ttft-ms"
SLO_ITL_HEADER: Final = "x-tidemill-slo-itl-ms"
MAX_NUMBER_CHARACTERS: Final = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """A tenant, and the tokens that let the gateway speak for it; nobody in particular without keys."""

    policy: TenantPolicy
    engine_token: str = field(default="", repr=False)
    former_engine_token: str = field(default="", repr=False)


class Denied(Enum):
    """Why nobody is let in."""

    WRONG_KEY = "wrong_key"
    NO_KEYS_YET = "no_keys_yet"


def identify(routing: Routing, ring: KeyRing | None, authorization: str) -> Caller | Denied:
    """Find out who asks; a service that wants keys lets nobody in until there are some."""
    if not routing.needs_key:
        return Caller(policy=TenantPolicy(name="", limits=routing.limits))
    if ring is None:
        return Denied.NO_KEYS_YET
    key = bearer_token(authorization)
    tenant = ring.tenant_of(key) if key else None
    if tenant is None:
        return Denied.WRONG_KEY
    return Caller(
        policy=routing.policy_of(tenant),
        engine_token=ring.engine_token,
        former_engine_token=ring.former_engine_token,
    )


def engine_headers(caller: Caller, routing: Routing, asked: Mapping[str, str]) -> dict[str, str]:
    """Give the headers that the gateway itself sets, from what the client `asked` for in its own.

    A client may ask for a class after its tenant's and for any SLO, which only orders what its tenant's share
    allows; without keys there are no classes.
    """
    headers = {}
    if caller.engine_token:
        headers["Authorization"] = f"Bearer {caller.engine_token}"
        headers[TENANT_HEADER] = caller.policy.name
        headers[PRIORITY_HEADER] = str(max(caller.policy.priority, _integer(asked.get(PRIORITY_HEADER))))
        if caller.former_engine_token:
            headers[FORMER_TOKEN_HEADER] = caller.former_engine_token
        if caller.policy.weight != 1:
            headers[WEIGHT_HEADER] = str(caller.policy.weight)
    for header, default in ((SLO_TTFT_HEADER, routing.slo_ttft_ms), (SLO_ITL_HEADER, routing.slo_itl_ms)):
        value = asked.get(header) or (str(default) if default is not None else "")
        if value and len(value) <= MAX_NUMBER_CHARACTERS:
            headers[header] = value
    return headers


def _integer(text: str | None) -> int:
    """Read a class; what is none asks for nothing, as the least number does."""
    if text is None or len(text) > MAX_NUMBER_CHARACTERS:
        return -(2**31)
    try:
        return int(text)
    except ValueError:
        return -(2**31)
