"""What each service offers a download: a list of files at one version, and the request for one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tidemill_engine.download.http import Request
from tidemill_engine.download.selection import RemoteFile, Selection


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files to download, and the version that they are of: a commit, or a digest of the listing."""

    version: str
    selection: Selection


class Service(Protocol):
    """One service, told where and what."""

    async def list_files(self) -> Listing:
        """Find out which files there are now; raises TransientError where trying again may help."""

    async def request_for(self, file: RemoteFile, version: str) -> Request:
        """Give the request for one file of a listing of that version; signed for now, so never kept."""
