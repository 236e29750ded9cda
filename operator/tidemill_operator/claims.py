"""Which service claims which bare model name and which host: the oldest has it, the others are told.

Knows the services that the watch has shown, in memory. Refuses any I/O; whoever changes a claim is told which
other services must look again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemill_operator.keys import Key
from tidemill_operator.observed import LostClaim
from tidemill_operator.spec import hosts_of, served_names_of

Wanted = tuple[str, bool]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One service's claim: names, each with whether it is a host."""

    key: Key
    created_at: str
    wanted: frozenset[Wanted]


class Claims:
    """All claims known so far."""

    def __init__(self) -> None:
        self._claims: dict[Key, Claim] = {}
        self._released: dict[Key, str] = {}

    def record(self, service: Mapping[str, Any]) -> set[Key]:
        """Record a service's claim; return the other services that its change concerns."""
        metadata = service["metadata"]
        claim = Claim(
            key=Key(metadata["namespace"], metadata["name"]),
            created_at=metadata.get("creationTimestamp") or "",
            wanted=_wanted_by(service),
        )
        before = self._claims.get(claim.key)
        if before == claim or self._released.get(claim.key) == metadata["uid"]:
            return set()
        self._claims[claim.key] = claim
        return self._rivals(claim) | (self._rivals(before) if before else set())

    def drop(self, key: Key) -> set[Key]:
        """Forget a service; return the others that claimed the same."""
        self._released.pop(key, None)
        before = self._claims.pop(key, None)
        return self._rivals(before) if before else set()

    def release(self, key: Key, uid: str) -> set[Key]:
        """Give up all that a service claims, for good, while it is still there; return its rivals."""
        rivals = self.drop(key)
        self._released[key] = uid
        return rivals

    def lost(self, key: Key) -> tuple[LostClaim, ...]:
        """Give what a service wants and an older one has, in a stable order."""
        own = self._claims.get(key)
        if own is None:
            return ()
        lost = []
        for what, is_host in sorted(own.wanted):
            first = min((c for c in self._claims.values() if (what, is_host) in c.wanted), key=_seniority)
            if first.key != key:
                lost.append(LostClaim(what=what, owner=str(first.key), is_host=is_host))
        return tuple(lost)

    def _rivals(self, claim: Claim) -> set[Key]:
        others = (other for other in self._claims.values() if other.key != claim.key)
        return {other.key for other in others if claim.wanted & other.wanted}


def _wanted_by(service: Mapping[str, Any]) -> frozenset[Wanted]:
    hosts = ((host, True) for host in hosts_of(service))
    return frozenset([*((name, False) for name in served_names_of(service)), *hosts])


def _seniority(claim: Claim) -> tuple[str, Key]:
    return claim.created_at, claim.key
