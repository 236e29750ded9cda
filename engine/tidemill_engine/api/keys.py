"""Who may ask, and for whom: API keys from the command line and from a file of `tenant=key` lines.

Knows keys by their hashes only. The file is read again when it changes, as mounted Secrets do. A bad line
is never shown: it may hold a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from dataclasses import dataclass
from pathlib import Path

from tidemill_engine.api.protocol.terms import is_tenant_name
from tidemill_engine.api.token_file import TokenFile
from tidemill_engine.errors import InvalidConfig

logger = logging.getLogger(__name__)

TRUSTED = "*"
"""The name, in the keys file, of a key whose bearer may name tenants itself: a gateway."""
GATEWAY_TOKEN_PURPOSE = b"tidemill gateway"
GATEWAY_TOKEN_CHARACTERS = 64
MAX_FILE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Bearer:
    """Whose key a request brought; `tenant` is empty where the key belongs to none."""

    tenant: str = ""
    is_trusted: bool = False


def parse_keys(text: str) -> dict[bytes, Bearer]:
    """Read `tenant=key` lines; empty ones and those that begin with # are skipped."""
    keys: dict[bytes, Bearer] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        tenant, separator, key = (part.strip() for part in stripped.partition("="))
        if not separator or not key or not is_tenant_name(tenant):
            raise InvalidConfig(
                f"line {number} of the API keys file is not tenant=key", param="api_keys_file"
            )
        digest = _digest(key)
        bearer = Bearer(is_trusted=True) if tenant == TRUSTED else Bearer(tenant=tenant)
        if keys.setdefault(digest, bearer) != bearer:
            raise InvalidConfig(
                f"line {number} of the API keys file gives one key to two tenants", param="api_keys_file"
            )
    return keys


def gateway_token(admin_token: str) -> str:
    """Derive the token by which a service's engines know a gateway, from the secret that they share.

    Who knows it can't ask the admin port for anything: the derivation has no way back.
    """
    return hmac.digest(admin_token.encode(), GATEWAY_TOKEN_PURPOSE, "sha256").hex()


class ApiKeys:
    """The keys that are accepted now; without any configured, everybody is.

    A gateway's token is believed in any case, where there is an admin token from which to derive it.
    """

    def __init__(self, api_key: str | None, path: Path | None, admin_token: TokenFile | None = None) -> None:
        self._admin_token = admin_token
        self._own = {} if api_key is None else {_digest(api_key): Bearer()}
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._from_file: dict[bytes, Bearer] = {}

    @property
    def is_open(self) -> bool:
        """Say whether nobody needs a key."""
        return self._path is None and not self._own

    def bearer(self, key: str, former_token: str = "") -> Bearer | None:
        """Return whose key this is, comparing with every known one; None if nobody's.

        `former_token` is what a gateway gives beside a new token: where the new one has not been brought to
        this engine yet, the former one is still the engine's own.
        """
        if self._is_gateway(key) or self._is_gateway(former_token):
            return Bearer(is_trusted=True)
        if self.is_open:
            return Bearer()
        self._refresh()
        given = _digest(key)
        found = None
        for digest, bearer in (self._from_file | self._own).items():
            if hmac.compare_digest(digest, given):
                found = bearer
        return found

    def _is_gateway(self, key: str) -> bool:
        admin_token = self._admin_token.token() if self._admin_token is not None else ""
        if not admin_token or len(key) != GATEWAY_TOKEN_CHARACTERS:
            return False
        given = key.encode(errors="surrogateescape")
        return hmac.compare_digest(gateway_token(admin_token).encode(), given)

    def load(self) -> None:
        """Read the file at the start, when a bad one is a reason not to start."""
        if self._path is None:
            return
        try:
            self._read(self._path)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfig(f"the API keys file can't be read: {error}", param="api_keys_file") from error

    def _refresh(self) -> None:
        """Read the file again if it has changed: one with a bad line changes nothing, none means no keys."""
        if self._path is None:
            return
        try:
            status = self._path.stat()
            if (status.st_ino, status.st_mtime_ns, status.st_size) != self._seen:
                self._read(self._path)
        except OSError as error:
            logger.warning("refusing the file's API keys: it can't be read: %s", error)
            self._from_file, self._seen = {}, None
        except (UnicodeDecodeError, InvalidConfig) as error:
            logger.warning("keeping the API keys known before: %s", error)

    def _read(self, path: Path) -> None:
        status = path.stat()
        if status.st_size > MAX_FILE_BYTES:
            raise InvalidConfig(f"the API keys file is over {MAX_FILE_BYTES} bytes", param="api_keys_file")
        self._seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        self._from_file = parse_keys(path.read_text())
        logger.info("read %d API keys from %s", len(self._from_file), path)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()
