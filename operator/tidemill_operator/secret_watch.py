"""Looks after the admin Secrets without the right to list or watch Secrets.

Knows that one which is deleted has to be made again at once, since that is how its token is rotated, and
asks for each by name and for its metadata alone. Refuses to read a token, and to ask more often than a few
times a second, however many services there are.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from tidemill_operator import names
from tidemill_operator.api import Object, Place
from tidemill_operator.clock import Clock
from tidemill_operator.errors import ApiError
from tidemill_operator.keys import Key

logger = logging.getLogger(__name__)

ROUND_SECONDS: Final = 5.0
MIN_PAUSE_SECONDS: Final = 0.25


class MetadataApi(Protocol):
    """The one request that is made."""

    async def get_metadata(self, place: Place) -> Object | None:
        """Read an object's metadata."""
        ...


class SecretWatch:
    """Asks for one Secret after the other, each every five seconds or as the bound allows."""

    def __init__(
        self,
        api: MetadataApi,
        known: Callable[[], Mapping[Key, Object]],
        on_change: Callable[[Key], None],
        clock: Clock,
    ) -> None:
        self._api = api
        self._known = known
        self._on_change = on_change
        self._clock = clock

    async def run(self) -> None:
        """Go round for ever."""
        while True:
            round_of = dict(self._known())
            pause = max(MIN_PAUSE_SECONDS, ROUND_SECONDS / max(1, len(round_of)))
            for key, secret in round_of.items():
                await self._clock.sleep(pause)
                await self._look(key, secret)
            if not round_of:
                await self._clock.sleep(pause)

    async def _look(self, key: Key, secret: Object) -> None:
        place = Place(kind="Secret", namespace=key.namespace, name=names.admin_secret_name(key.name))
        try:
            found = await self._api.get_metadata(place)
        except ApiError as error:
            logger.debug("cannot look at the Secret of %s: %s", key, error)
            return
        if found is None or found["metadata"]["uid"] != secret["metadata"]["uid"]:
            logger.info("the Secret %s of %s is gone or another one", place.name, key)
            self._on_change(key)
