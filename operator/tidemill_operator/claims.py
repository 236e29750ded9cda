"""Which service claims which bare model name: the oldest wins, the others are told.

Knows the services that the watch has shown, in memory. Refuses any I/O; whoever changes a claim is told which
other services must look again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill_operator.keys import Key
from tidemill_operator.spec import served_names_of


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One service's claim to its model names."""

    key: Key
    created_at: str
    served_names: tuple[str, ...]


class Claims:
    """All claims known so far."""

    def __init__(self) -> None:
        self._claims: dict[Key, Claim] = {}

    def record(self, service: Mapping[str, Any]) -> set[Key]:
        """Record a service's claim; return the other services that its change concerns."""
        metadata = service["metadata"]
        claim = Claim(
            key=Key(metadata["namespace"], metadata["name"]),
            created_at=metadata.get("creationTimestamp") or "",
            served_names=served_names_of(service),
        )
        before = self._claims.get(claim.key)
        if before == claim:
            return set()
        self._claims[claim.key] = claim
        return self._rivals(claim) | (self._rivals(before) if before else set())

    def drop(self, key: Key) -> set[Key]:
        """Forget a service; return the others that claimed the same names."""
        before = self._claims.pop(key, None)
        return self._rivals(before) if before else set()

    def older(self, key: Key) -> dict[str, str]:
        """Give the names of a service that an older one claims, with that one's key."""
        own = self._claims.get(key)
        if own is None:
            return {}
        lost: dict[str, str] = {}
        for name in own.served_names:
            first = min((c for c in self._claims.values() if name in c.served_names), key=_seniority)
            if first.key != key:
                lost[name] = str(first.key)
        return lost

    def _rivals(self, claim: Claim) -> set[Key]:
        names = set(claim.served_names)
        return {
            other.key
            for other in self._claims.values()
            if other.key != claim.key and names & set(other.served_names)
        }


def _seniority(claim: Claim) -> tuple[str, Key]:
    return claim.created_at, claim.key
