"""The one place that holds the newest `World` while the gateway runs.

Knows the current world, the claims that follow from it, and which first lists are still missing. Refuses to
know the API server and requests: watches write here, the proxy reads.
"""

import logging
from collections.abc import Callable, Iterable

from tidemill_gateway.route import Claims, build_claims
from tidemill_gateway.world import World

logger = logging.getLogger(__name__)


class ClusterState:
    """The world as it was last seen; all access is from one event loop."""

    def __init__(self, sources: Iterable[str]) -> None:
        self._world = World()
        self._claims = build_claims(())
        self._missing = set(sources)
        self._listeners: list[Callable[[], None]] = []

    @property
    def world(self) -> World:
        """The newest world."""
        return self._world

    @property
    def claims(self) -> Claims:
        """The claims of the newest world."""
        return self._claims

    @property
    def is_complete(self) -> bool:
        """Say whether every source has delivered its first list."""
        return not self._missing

    @property
    def missing(self) -> tuple[str, ...]:
        """The sources that have not delivered their first list."""
        return tuple(sorted(self._missing))

    def update(self, world: World) -> None:
        """Take a newer world."""
        if world.services is not self._world.services:
            self._claims = build_claims(world.services_by_age)
        self._world = world
        for listener in self._listeners:
            listener()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call a function whenever the world has changed."""
        self._listeners.append(listener)

    def mark_delivered(self, source: str) -> None:
        """Note that a source has delivered its first list."""
        if source in self._missing:
            self._missing.discard(source)
            logger.info(
                "first list of %s is here; still missing: %s", source, sorted(self._missing) or "none"
            )
