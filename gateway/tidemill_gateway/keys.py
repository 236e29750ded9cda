"""Whose API key a request brought, by salted hashes alone.

Pure. Knows the projection that the operator writes: for each service a salt, each tenant's hashes, and the
token by which its engines know a gateway. Refuses to know any key of a client, and where the projection is
kept.
"""

import hmac
import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRing:
    """One service's keys; `engine_token` proves to its engines that a gateway speaks.

    `former_engine_token` proves it to those that do not know the new one yet; empty before a rotation.
    """

    salt: bytes = field(repr=False)
    hashes: tuple[tuple[bytes, str], ...] = field(repr=False)
    engine_token: str = field(repr=False)
    former_engine_token: str = field(default="", repr=False)

    def tenant_of(self, key: str) -> str | None:
        """Find the tenant of a key, comparing with every hash in constant time; None if it is nobody's."""
        given = hmac.digest(self.salt, key.encode(errors="surrogateescape"), "sha256")
        found = None
        for digest, tenant in self.hashes:
            if hmac.compare_digest(digest, given):
                found = tenant
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRings:
    """All projected keys, by namespace and name of the service."""

    by_service: Mapping[tuple[str, str], KeyRing] = field(default_factory=dict)


def parse_key_rings(data: Mapping[str, str]) -> KeyRings:
    """Read the projection's Secret; raise ValueError, KeyError or TypeError when it is none."""
    found = {}
    for entry, encoded in data.items():
        namespace, _, name = entry.partition(".")
        raw = json.loads(b64decode(encoded))
        hashes = tuple(
            (bytes.fromhex(text), str(tenant)) for tenant, texts in raw["keys"].items() for text in texts
        )
        found[(namespace, name)] = KeyRing(
            salt=bytes.fromhex(raw["salt"]),
            hashes=hashes,
            engine_token=str(raw["engineToken"]),
            former_engine_token=str(raw.get("formerEngineToken", "")),
        )
    return KeyRings(by_service=found)


def bearer_token(authorization: str) -> str:
    """Give the bearer token of an Authorization header, empty where there is none."""
    scheme, _, given = authorization.partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""
