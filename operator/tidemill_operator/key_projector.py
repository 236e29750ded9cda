"""Keeps the gateways' Secret in step with the Secrets that services name in spec.routing.auth.

Knows which services want keys, and reads each named Secret again in a slow round, since Secrets are not the
operator's to watch. Refuses to decide what is written (`key_projection` does) and to touch entries of others
that still exist: an entry goes only when the API server itself says that its service has gone or wants no
keys.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from tidemill_operator import names
from tidemill_operator.api import Object, Place
from tidemill_operator.errors import ApiError
from tidemill_operator.key_projection import SALT_BYTES, engine_tokens, entry_name, key_of, project, salt_of
from tidemill_operator.keys import Key
from tidemill_operator.views import admin_token_in, former_token_in

logger = logging.getLogger(__name__)

ROUND_SECONDS: Final = 15.0
MAX_READS_AT_ONCE: Final = 8


class SecretApi(Protocol):
    """The requests that are made."""

    async def get(self, place: Place) -> Object | None:
        """Read an object."""
        ...

    async def create(self, manifest: Object, *, kind: str) -> Object:
        """Create an object."""
        ...

    async def merge(self, place: Place, patch: Object) -> Object:
        """Merge fields into an object."""
        ...


class KeyProjector:
    """Reads, compares, and writes what differs."""

    def __init__(
        self,
        api: SecretApi,
        place: Place,
        tell: Callable[[Object, str], Any],
        on_problem: Callable[[Key], object],
    ) -> None:
        self._api = api
        self._place = place
        self._tell = tell
        self._on_problem = on_problem
        self._problems: dict[Key, str] = {}
        self._wanted: dict[Key, str] = {}
        self._reads = asyncio.Semaphore(MAX_READS_AT_ONCE)
        self._changed = asyncio.Event()

    def note(self, key: Key, service: Mapping[str, Any] | None) -> None:
        """Take note of a service as the watch shows it; None when it is gone."""
        before = self._wanted.get(key)
        name = _secret_name_of(service)
        if name is None:
            self._wanted.pop(key, None)
            self._problems.pop(key, None)
        else:
            self._wanted[key] = name
        if before != name:
            self._changed.set()

    def go_round(self) -> None:
        """Read all Secrets again at once: what engines know gateways by has changed."""
        self._changed.set()

    def problem_of(self, key: Key) -> str:
        """Say why a service's gateways let nobody in; empty when they let somebody in, or everybody."""
        return self._problems.get(key, "")

    async def run(self) -> None:
        """Go round for ever: slowly, or at once when told to or a service begins or ceases to want keys."""
        while True:
            self._changed.clear()
            try:
                await self.project_all()
            except ApiError as error:
                logger.warning("cannot project API keys: %s", error)
            except Exception:
                # A fault over one service must not keep the keys of all others from ever changing again.
                logger.exception("cannot project API keys")
            await self._until_changed_or(ROUND_SECONDS)

    async def project_all(self) -> None:
        """Bring every entry up to date."""
        found = await self._api.get(self._place)
        data = dict((found or {}).get("data") or {})
        wanted = dict(self._wanted)
        strangers = [key_of(entry) for entry in data if key_of(entry) not in wanted]
        changes = await asyncio.gather(
            *(self._entry_of(key, name, data.get(entry_name(key))) for key, name in wanted.items()),
            *(self._entry_of_stranger(key) for key in strangers),
        )
        patch = {entry: value for entry, value in changes if entry is not None and data.get(entry) != value}
        if not patch:
            return
        if found is None:
            await self._create({entry: value for entry, value in patch.items() if value is not None})
        else:
            await self._api.merge(self._place, {"data": patch})
        logger.info("projected the API keys of %s", ", ".join(sorted(patch)))

    async def _entry_of(self, key: Key, name: str, before: str | None) -> tuple[str | None, str | None]:
        """Give a service's entry as it should be; a first None leaves it as it is."""
        async with self._reads:
            try:
                source = await self._api.get(Place(kind="Secret", namespace=key.namespace, name=name))
                admin = await self._api.get(
                    Place(kind="Secret", namespace=key.namespace, name=names.admin_secret_name(key.name))
                )
            except ApiError as error:
                logger.warning("cannot read the API keys of %s: %s", key, error)
                return None, None
        if source is None:
            message = f"the Secret {name} of spec.routing.auth does not exist: nobody is let in"
            self._note_problem(key, name, message)
            await self._report(key, message)
            return entry_name(key), None
        tokens = engine_tokens(admin_token_in(admin or {}), former_token_in(admin or {}), before)
        salt = salt_of(before) or secrets.token_bytes(SALT_BYTES)
        projected = project(source.get("data") or {}, tokens=tokens, salt=salt)
        message = f"the Secret {name} of spec.routing.auth: {'; '.join(projected.problems)}"
        self._note_problem(key, name, f"{message}: nobody is let in" if projected.lets_nobody_in else "")
        if projected.problems:
            await self._report(key, message)
        return entry_name(key), projected.entry

    def _note_problem(self, key: Key, name: str, message: str) -> None:
        """Keep why nobody is let in, and have the service's status say it; empty when somebody is.

        What was found of a Secret that the service has ceased to name while it was read is not kept.
        """
        if self._wanted.get(key) != name or self.problem_of(key) == message:
            return
        if message:
            self._problems[key] = message
        else:
            self._problems.pop(key, None)
        self._on_problem(key)

    async def _entry_of_stranger(self, key: Key) -> tuple[str | None, str | None]:
        """Let go of an entry whose service is gone or wants no keys any more."""
        async with self._reads:
            try:
                service = await self._api.get(Place(kind=names.KIND, namespace=key.namespace, name=key.name))
            except ApiError as error:
                logger.warning("cannot tell whether %s still wants its API keys: %s", key, error)
                return None, None
        return (entry_name(key), None) if _secret_name_of(service) is None else (None, None)

    async def _report(self, key: Key, message: str) -> None:
        """Write an event, where that is possible; keys that are taken back go in any case."""
        try:
            service = await self._api.get(Place(kind=names.KIND, namespace=key.namespace, name=key.name))
        except ApiError as error:
            logger.warning("cannot tell %s of its API keys: %s: %s", key, message, error)
            return
        if service is not None:
            await self._tell(service, message)

    async def _create(self, data: Mapping[str, str]) -> None:
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {"name": self._place.name, "namespace": self._place.namespace},
            "data": dict(data),
        }
        await self._api.create(manifest, kind="Secret")

    async def _until_changed_or(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return


def _secret_name_of(service: Mapping[str, Any] | None) -> str | None:
    routing = ((service or {}).get("spec") or {}).get("routing") or {}
    name = ((routing.get("auth") or {}).get("secretRef") or {}).get("name")
    return str(name) if name else None
