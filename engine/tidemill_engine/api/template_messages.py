"""What the server and its template process say to each other. Knows the wire only."""

from __future__ import annotations

import msgspec


class TemplateSource(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The template to use from now on; sent once, answered by an empty text or an error."""

    source: str


class RenderRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One conversation to render up to where the assistant speaks."""

    messages: list[dict[str, str]]
    bos_token: str = ""
    eos_token: str = ""


TemplateMessage = TemplateSource | RenderRequest


class RenderResult(msgspec.Struct, frozen=True, kw_only=True):
    """The rendered prompt, or the reason why there is none."""

    text: str = ""
    error: str | None = None
