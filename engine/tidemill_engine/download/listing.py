"""What objects of a bucket are to a prefix: a folder of files, or one file. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from tidemill_engine.download.errors import DownloadError, Failure
from tidemill_engine.download.selection import RemoteFile, select_files
from tidemill_engine.download.service import Listing

VERSION_LENGTH = 40


def list_prefix(prefix: str) -> str:
    """Give the prefix to ask the service for: one file, or a folder and not its namesakes."""
    return prefix if not prefix or prefix.endswith(".gguf") else f"{prefix}/"


def listing_of(prefix: str, objects: Sequence[RemoteFile], bucket: str) -> Listing:
    """Name objects relative to the prefix, choose among them, and give their state a version.

    A bucket has no commits: the version is a digest of names, sizes and the service's own versions.
    """
    single = next((o for o in objects if o.key == prefix), None)
    if single is not None:
        name = prefix.rpartition("/")[2]
        selection = select_files([replace(single, path=name)], name)
    else:
        root = f"{prefix}/" if prefix else ""
        files = [
            replace(o, path=o.key.removeprefix(root))
            for o in objects
            if o.key.startswith(root) and not o.key.endswith("/")
        ]
        if not files:
            raise DownloadError(Failure.NOT_FOUND, f"there is nothing at {bucket}/{prefix}")
        selection = select_files(files)
    told = "\n".join(f"{f.path} {f.size} {f.version}" for f in selection.files)
    version = hashlib.sha256(told.encode()).hexdigest()[:VERSION_LENGTH]
    return Listing(version=version, selection=selection)
