"""The Secrets with the tokens of the engines' admin port: created once, read, remembered.

Knows that a Secret counts only when it is the service's own, and that engines ask for a former token until
the kubelet has brought them the new one: it stands in the new Secret, too, for an operator that has begun
since. Refuses to write one that exists: whoever deletes it rotates its token, and `secret_watch.py` sees that
it is gone; what is read in its place is told at once, since gateways bear what is derived from it.
"""

import secrets
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Final

from tidemill_operator import names, views
from tidemill_operator.api import Api, Object, Place
from tidemill_operator.errors import ApiError
from tidemill_operator.keys import Key
from tidemill_operator.manifests import Manifest

TOKEN_BYTES: Final = 32


class AdminSecrets:
    """Gives the admin Secret and the tokens of each service."""

    def __init__(self, api: Api, on_rotation: Callable[[], object]) -> None:
        self._api = api
        self._on_rotation = on_rotation
        self._known: dict[Key, Object] = {}
        self._former_tokens: dict[Key, str] = {}

    @property
    def known(self) -> Mapping[Key, Object]:
        """Give the Secrets that were seen."""
        return self._known

    def forget(self, key: Key) -> None:
        """Drop what was remembered about a service that is gone."""
        self._known.pop(key, None)
        self._former_tokens.pop(key, None)

    def look_again(self, key: Key) -> None:
        """Read a service's Secret again in its next run, and keep the token that it had."""
        gone = self._known.pop(key, None)
        if gone is not None:
            self._former_tokens[key] = views.admin_token_in(gone)

    async def read(self, service: Object) -> Object | None:
        """Give a service's Secret, read until it is the service's own and then remembered."""
        metadata = service["metadata"]
        key = Key(metadata["namespace"], metadata["name"])
        known = self._known.get(key)
        if known is not None and views.is_controlled_by(known, metadata["uid"]):
            return known
        place = Place(kind="Secret", namespace=key.namespace, name=names.admin_secret_name(key.name))
        answer = await self._api.get(place)
        if answer is None:
            return None
        found = {**answer, "kind": place.kind}
        self._known[key] = found
        if known is None and key in self._former_tokens:
            self._on_rotation()
        return found

    def tokens(self, key: Key, secret: Object | None, uid: str) -> tuple[str, ...]:
        """Give the token in the service's own Secret, where there is one, then the former one."""
        former = self._former_tokens.get(key)
        if secret is None or not views.is_controlled_by(secret, uid):
            return (former,) if former else ()
        own, written = views.admin_token_in(secret), views.former_token_in(secret)
        return tuple(token for token in (own, former or written) if token)

    async def create(self, key: Key, manifest: Manifest) -> None:
        """Create a Secret with a new random token and the former one; one that exists is left as it is."""
        tokens = {names.ADMIN_TOKEN_KEY: secrets.token_urlsafe(TOKEN_BYTES)}
        if former := self._former_tokens.get(key):
            tokens[names.FORMER_TOKEN_KEY] = former
        data = {name: b64encode(token.encode()).decode() for name, token in tokens.items()}
        try:
            await self._api.create({**manifest, "data": data}, kind="Secret")
        except ApiError as error:
            if not error.is_conflict:
                raise
