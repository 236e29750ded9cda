"""A model hub that speaks huggingface.co's HTTP API: one call lists a revision, one URL gives a file.

Knows `/api/models/REPOSITORY/revision/REVISION?blobs=true` and `/REPOSITORY/resolve/COMMIT/FILE`. Plain HTTP
with ranges: the Xet protocol is not spoken, the hub serves the same bytes without it.
"""

from __future__ import annotations

from urllib.parse import quote

import msgspec
from yarl import URL

from tidemill_engine.download.errors import DownloadError, Failure
from tidemill_engine.download.http import HttpClient, Request
from tidemill_engine.download.selection import Digest, RemoteFile, select_files
from tidemill_engine.download.service import Listing
from tidemill_engine.download.source import HubSource

PUBLIC_ENDPOINT = URL("https://huggingface.co")


class _LfsInfo(msgspec.Struct):
    sha256: str
    size: int


class _Sibling(msgspec.Struct, rename={"blob_id": "blobId"}):
    rfilename: str
    size: int = -1
    blob_id: str | None = None
    lfs: _LfsInfo | None = None


class _ModelInfo(msgspec.Struct):
    sha: str
    siblings: list[_Sibling]


class HubService:
    """One repository at one revision."""

    def __init__(
        self, client: HttpClient, source: HubSource, token: str | None, endpoint: URL = PUBLIC_ENDPOINT
    ) -> None:
        self._client = client
        self._source = source
        self._endpoint = endpoint
        self._secret = {} if token is None else {"Authorization": f"Bearer {token}"}

    async def list_files(self) -> Listing:
        """Resolve the revision to a commit and list its files."""
        source = self._source
        path = f"/api/models/{source.repository}/revision/{quote(source.revision, safe='')}?blobs=true"
        what = f"hf://{source.repository} at revision {source.revision}"
        body = await self._client.read(self._request(path), what=what)
        try:
            info = msgspec.json.decode(body, type=_ModelInfo)
        except msgspec.MsgspecError as error:
            raise DownloadError(
                Failure.FAILED, f"the hub's answer for {what} can't be read: {error}"
            ) from error
        if len(info.sha) != 40 or not info.sha.isalnum():
            raise DownloadError(Failure.FAILED, f"the hub names no commit for {what}")
        return Listing(
            version=info.sha, selection=select_files(map(_remote_file, info.siblings), source.file)
        )

    async def request_for(self, file: RemoteFile, version: str) -> Request:
        """Give the request for a file at the listing's commit."""
        return self._request(f"/{self._source.repository}/resolve/{version}/{quote(file.key)}")

    def _request(self, path: str) -> Request:
        url = URL(str(self._endpoint).rstrip("/") + path, encoded=True)
        return Request(url=url, secret_headers=self._secret)


def _remote_file(sibling: _Sibling) -> RemoteFile:
    digest: Digest | None = None
    size = sibling.size
    if sibling.lfs is not None:
        digest, size = Digest(kind="sha256", value=sibling.lfs.sha256), sibling.lfs.size
    elif sibling.blob_id is not None:
        digest = Digest(kind="git-sha1", value=sibling.blob_id)
    if size < 0:
        raise DownloadError(Failure.FAILED, f"the hub gives no size for {sibling.rfilename}")
    return RemoteFile(path=sibling.rfilename, key=sibling.rfilename, size=size, digest=digest)
