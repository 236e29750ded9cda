"""Reads typed, range-checked fields out of one JSON object; refusals name the field, the value and the range.

Knows JSON and nothing of what the fields mean. `null` counts as absent, as it does for OpenAI.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from tidemill_engine.errors import InvalidRequest

MAX_SHOWN_CHARACTERS = 80


def decode_body(body: bytes) -> Fields:
    """Decode a request body that must be one JSON object."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {kind_of(value)}", code="invalid_json")
    return Fields(value)


def kind_of(value: object) -> str:
    """Name the JSON type of a value."""
    names: dict[type, str] = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    return names.get(type(value), "a number")


def show(value: object) -> str:
    """Write a value for an error message, cut to a bounded length."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, OverflowError):
        text = str(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + "..."


@dataclass(frozen=True, kw_only=True)
class Range:
    """Allowed values of a number: both ends included unless `above` says that the low end is not."""

    low: float
    high: float
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        opening = "greater than" if self.above else "at least"
        return f"{opening} {self.low:g} and at most {self.high:g}"


class Fields:
    """One JSON object of a request, with the path that leads to it for error messages."""

    def __init__(self, values: dict[str, Any], path: str = "") -> None:
        self._values = values
        self._path = path

    def name(self, key: str) -> str:
        """Return the full name of a field as the client would write it."""
        return f"{self._path}.{key}" if self._path else key

    def refuse(self, key: str, rule: str) -> InvalidRequest:
        """Build the error for a field that breaks a rule such as 'must be a string'."""
        return InvalidRequest(f"{self.name(key)} {rule}, got {show(self.get(key))}", param=self.name(key))

    def get(self, key: str) -> Any:
        """Return the raw value, or None where it is absent or null."""
        return self._values.get(key)

    def string(self, key: str, *, default: str | None = None, max_characters: int = 1_000_000) -> str | None:
        """Read a string."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.refuse(key, "must be a string")
        if len(value) > max_characters:
            raise self.refuse(key, f"must have at most {max_characters} characters")
        return value

    def boolean(self, key: str, *, default: bool = False) -> bool:
        """Read a boolean."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(key, "must be true or false")
        return value

    def number(self, key: str, allowed: Range, *, default: float) -> float:
        """Read a number within a range."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or value not in allowed:
            raise self.refuse(key, f"must be a number {allowed}")
        return float(value)

    def integer(self, key: str, low: int, high: int) -> int | None:
        """Read an integer within a range, or None where it is absent; 16.0 counts as 16."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(key, f"must be an integer from {low} to {high}")
        return value

    def object(self, key: str) -> Fields | None:
        """Read a nested object."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(key, "must be an object")
        return Fields(value, self.name(key))

    def items(self) -> list[tuple[str, Any]]:
        """List the keys and raw values."""
        return list(self._values.items())
