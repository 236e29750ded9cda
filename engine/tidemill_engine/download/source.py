"""What the URI of a model to download means. Pure; the operator's CRD refuses what is refused here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from tidemill_engine.errors import InvalidConfig

DEFAULT_REVISION = "main"
DEFAULT_REGION = "us-east-1"

_HUB = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:/([^?#\s]+))?", re.ASCII)
_S3 = re.compile(r"([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/([^?#\s]*))?(?:\?region=([a-z0-9-]+))?")
_GCS = re.compile(r"([a-z0-9][a-z0-9._-]{1,61}[a-z0-9])(?:/([^?#\s]*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """A repository of a model hub at a revision: all of it, or one file."""

    repository: str
    revision: str
    file: str | None = None

    @property
    def is_pinned(self) -> bool:
        """Say whether the revision is a commit, which never changes."""
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def key(self) -> str:
        """Name what is downloaded, whatever its version."""
        return f"hf://{self.repository}/{self.file or ''}"


@dataclass(frozen=True, kw_only=True)
class S3Source:
    """The objects below a prefix of an S3 bucket, or the one object of that name."""

    bucket: str
    prefix: str
    region: str

    @property
    def key(self) -> str:
        """Name what is downloaded, whatever its version."""
        return f"s3://{self.bucket}/{self.prefix}"


@dataclass(frozen=True, kw_only=True)
class GcsSource:
    """The objects below a prefix of a Cloud Storage bucket, or the one object of that name."""

    bucket: str
    prefix: str

    @property
    def key(self) -> str:
        """Name what is downloaded, whatever its version."""
        return f"gs://{self.bucket}/{self.prefix}"


Source = HubSource | S3Source | GcsSource


def parse_source(uri: str, revision: str | None = None) -> Source:
    """Read a URI, or say what is wrong with it."""
    scheme, _, rest = uri.partition("://")
    if ".." in unquote(rest).split("/"):
        raise InvalidConfig(f"{uri!r} leads upwards by '..'", param="uri")
    if scheme == "hf" and (match := _HUB.fullmatch(rest)):
        return HubSource(
            repository=match[1], revision=revision or DEFAULT_REVISION, file=_path(match[2]) or None
        )
    if revision is not None:
        raise InvalidConfig(f"--revision is for hf://, not for {uri!r}", param="revision")
    if scheme == "s3" and (match := _S3.fullmatch(rest)):
        return S3Source(bucket=match[1], prefix=_path(match[2]), region=match[3] or DEFAULT_REGION)
    if scheme == "gs" and (match := _GCS.fullmatch(rest)):
        return GcsSource(bucket=match[1], prefix=_path(match[2]))
    raise InvalidConfig(
        f"{uri!r} can't be downloaded; what can: hf://ORGANISATION/MODEL, s3://BUCKET/PATH, gs://BUCKET/PATH",
        param="uri",
    )


def _path(text: str | None) -> str:
    """Read a path as its service knows it: percent signs stand for what a URI can't hold."""
    return unquote(text or "").strip("/")
