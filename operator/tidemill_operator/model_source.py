"""Where a model comes from: each URI scheme as a frozen value that says what a pod needs for it.

Pure. Knows the schemes and their forms, and that a path never leaves its root. Refuses to know volumes and
containers (`manifests`) and how a download goes (the engine's downloader reads the same URI).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tidemill_operator.errors import InvalidSpec

FIELD: Final = "spec.model.uri"

_ENGINE: Final = ("builtin", "file", "sim")
_DOWNLOADED: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "hf": (
        re.compile(r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(/[^?#\s]+)?$", re.ASCII),
        "hf://ORGANISATION/MODEL, or hf://ORGANISATION/MODEL/FILE.gguf for one file",
    ),
    "s3": (
        re.compile(r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^?#\s]*)?(\?region=[a-z0-9-]+)?$"),
        "s3://BUCKET/PATH or s3://BUCKET/PATH?region=REGION",
    ),
    "gs": (re.compile(r"^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[^?#\s]*)?$"), "gs://BUCKET/PATH"),
}
_CLAIM: Final = re.compile(r"^([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)(?:/([^?#\s]*))?$")
_IMAGE: Final = re.compile(
    r"^([a-z0-9][A-Za-z0-9.:-]*(?:/[a-z0-9._-]+)+(?::[\w.-]+)?(?:@sha256:[a-f0-9]{64})?)"
    r"(?:\?path=([\w./-]+))?$",
    re.ASCII,
)


@dataclass(frozen=True, kw_only=True)
class EngineSource:
    """A model that the engine finds by itself: inside its image, or a fake."""

    uri: str


@dataclass(frozen=True, kw_only=True)
class DownloadSource:
    """A model that is downloaded before the engine starts."""

    scheme: str
    uri: str


@dataclass(frozen=True, kw_only=True)
class ClaimSource:
    """A model on a volume of the service's namespace, at a path below the volume's root."""

    claim: str
    path: str


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """A model inside a container image, at a path below its root."""

    reference: str
    path: str


ModelSource = EngineSource | DownloadSource | ClaimSource | ImageSource


def parse_source(uri: str) -> ModelSource:
    """Read a model URI; raise InvalidSpec with what would be right."""
    scheme, separator, rest = uri.partition("://")
    if not separator or not rest or any(part == ".." for part in re.split(r"[/=]", rest)):
        raise InvalidSpec(FIELD, f"{uri!r} is no model URI, for example hf://ORGANISATION/MODEL")
    if scheme in _ENGINE:
        return EngineSource(uri=uri)
    if scheme in _DOWNLOADED:
        form, example = _DOWNLOADED[scheme]
        if not form.match(rest):
            raise InvalidSpec(FIELD, f"{uri!r} must look like {example}")
        return DownloadSource(scheme=scheme, uri=uri)
    if scheme in _MOUNTED:
        return _MOUNTED[scheme](uri, rest)
    known = ", ".join(f"{name}://" for name in (*_DOWNLOADED, *_MOUNTED, *_ENGINE))
    raise InvalidSpec(FIELD, f"{uri!r} must begin with one of {known}")


def _parse_claim(uri: str, rest: str) -> ClaimSource:
    match = _CLAIM.match(rest)
    if match is None:
        raise InvalidSpec(FIELD, f"{uri!r} must look like pvc://CLAIM/PATH")
    return ClaimSource(claim=match[1], path=(match[2] or "").strip("/"))


def _parse_image(uri: str, rest: str) -> ImageSource:
    match = _IMAGE.match(rest)
    if match is None:
        raise InvalidSpec(FIELD, f"{uri!r} must look like oci://REGISTRY/REPOSITORY:TAG or …:TAG?path=PATH")
    return ImageSource(reference=match[1], path=(match[2] or "").strip("/"))


_MOUNTED: Final[Mapping[str, Callable[[str, str], ModelSource]]] = {"pvc": _parse_claim, "oci": _parse_image}
