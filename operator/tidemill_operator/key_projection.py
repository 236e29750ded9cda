"""What gateways may know of a service's API keys: salted hashes, and a token for its engines.

Pure. Knows the referenced Secret's form (tenant to key or keys, one a line) and the projection's. Refuses to
show a key: problems name tenants alone.
"""

import hmac
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidemill_operator.keys import Key

MAX_KEYS: Final = 1000
SALT_BYTES: Final = 16
ENGINE_TOKEN_PURPOSE: Final = b"tidemill gateway"


@dataclass(frozen=True, kw_only=True)
class Projected:
    """A service's entry in the gateways' Secret, base64, and what is wrong with the referenced Secret.

    `lets_nobody_in`: there is no key at all.
    """

    entry: str
    lets_nobody_in: bool = False
    problems: tuple[str, ...] = ()


def entry_name(key: Key) -> str:
    """Name a service's entry; a namespace has no dot in it."""
    return f"{key.namespace}.{key.name}"


def key_of(entry: str) -> Key:
    """Give the service that an entry belongs to."""
    namespace, _, name = entry.partition(".")
    return Key(namespace, name)


def engine_token(admin_token: str) -> str:
    """Derive the token by which a service's engines know a gateway; empty while there is no admin token."""
    if not admin_token:
        return ""
    return hmac.digest(admin_token.encode(), ENGINE_TOKEN_PURPOSE, "sha256").hex()


def salt_of(entry: str | None) -> bytes | None:
    """Give the salt of an entry, so that the same keys give the same entry; None where there is none."""
    try:
        return bytes.fromhex(_document_in(entry)["salt"])
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, kw_only=True)
class EngineTokens:
    """By what engines know a gateway; `former`: by what those do that have not got the new one yet."""

    own: str = field(default="", repr=False)
    former: str = field(default="", repr=False)


def engine_tokens(admin_token: str, former_token: str, entry: str | None) -> EngineTokens:
    """Derive both from the admin tokens; what these lack is taken from the entry that there was.

    While a Secret that was deleted is being made anew there is no admin token, and engines go on knowing the
    last one.
    """
    before = _engine_tokens_in(entry)
    own = engine_token(admin_token) or before.own
    former = engine_token(former_token) or (before.former if own == before.own else before.own)
    return EngineTokens(own=own, former=former)


def project(data: Mapping[str, str], *, tokens: EngineTokens, salt: bytes) -> Projected:
    """Turn a Secret's data into an entry; what can't be used is left out and named."""
    problems: list[str] = []
    owners: dict[str, str] = {}
    hashes: dict[str, list[str]] = {}
    for tenant in sorted(data):
        for key in _lines(data[tenant], tenant, problems):
            if owners.setdefault(key, tenant) != tenant:
                problems.append(f"{tenant} has a key that {owners[key]} has, too")
            elif len(owners) <= MAX_KEYS:
                hashes.setdefault(tenant, []).append(hmac.digest(salt, key.encode(), "sha256").hex())
    if len(owners) > MAX_KEYS:
        problems.append(f"there are more than {MAX_KEYS} keys")
    if not owners:
        problems.append("it holds no keys")
    document = {"salt": salt.hex(), "keys": hashes, "engineToken": tokens.own}
    if tokens.former:
        document["formerEngineToken"] = tokens.former
    return Projected(
        entry=b64encode(json.dumps(document, sort_keys=True).encode()).decode(),
        lets_nobody_in=not owners,
        problems=tuple(problems),
    )


def _engine_tokens_in(entry: str | None) -> EngineTokens:
    document = _document_in(entry)
    if "engineToken" not in document:
        return EngineTokens()
    return EngineTokens(own=str(document["engineToken"]), former=str(document.get("formerEngineToken", "")))


def _document_in(entry: str | None) -> Mapping[str, Any]:
    """Read what an entry holds; nothing where there is none or it can't be read."""
    try:
        document = json.loads(b64decode(entry or ""))
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _lines(encoded: str, tenant: str, problems: list[str]) -> list[str]:
    try:
        text = b64decode(encoded).decode()
    except ValueError:
        problems.append(f"the value of {tenant} is not text")
        return []
    keys = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if not keys:
        problems.append(f"{tenant} has no key")
    return keys
