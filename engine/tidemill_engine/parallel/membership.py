"""Who a rank is and where it meets the others. Knows no tensors."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill_engine.models.sharding import Shard


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A rank's place, and a port of this machine to meet at: rank 0 brings the socket that listens there."""

    shard: Shard
    port: int
    listener_fd: int | None = None
