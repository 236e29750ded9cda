"""Amazon S3, and what speaks its protocol: ListObjectsV2; GET with If-Match so that no file changes midway.

Addresses buckets in the path, which every such service knows. Without credentials requests are unsigned:
public buckets only.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from urllib.parse import quote
from xml.etree import ElementTree as ET

from yarl import URL

from tidemill_engine.download.errors import DownloadError, Failure
from tidemill_engine.download.http import HttpClient, Request
from tidemill_engine.download.listing import list_prefix, listing_of
from tidemill_engine.download.selection import MAX_FILES, RemoteFile
from tidemill_engine.download.service import Listing
from tidemill_engine.download.sigv4 import Credentials, sign_get
from tidemill_engine.download.source import S3Source


class S3Service:
    """One prefix of one bucket."""

    def __init__(
        self,
        client: HttpClient,
        source: S3Source,
        credentials: Credentials | None,
        now: Callable[[], datetime],
        endpoint: URL | None = None,
    ) -> None:
        self._client = client
        self._source = source
        self._credentials = credentials
        self._now = now
        base = endpoint or URL(f"https://s3.{source.region}.amazonaws.com")
        self._base = f"{str(base).rstrip('/')}/{source.bucket}"

    async def list_files(self) -> Listing:
        """List the objects right below the prefix, page by page."""
        files: list[RemoteFile] = []
        token: str | None = None
        while True:
            found, token = await self._list_page(token)
            files += found
            if token is None or len(files) > MAX_FILES:
                return listing_of(self._source.prefix, files, f"s3://{self._source.bucket}")

    async def request_for(self, file: RemoteFile, version: str) -> Request:
        """Give the signed request for an object, if it is still the one listed."""
        del version
        return self._request(f"/{quote(file.key, safe='/-_.~')}", {"If-Match": f'"{file.version}"'})

    async def _list_page(self, token: str | None) -> tuple[list[RemoteFile], str | None]:
        query = {"list-type": "2", "prefix": list_prefix(self._source.prefix), "delimiter": "/"}
        if token is not None:
            query["continuation-token"] = token
        text = "&".join(f"{key}={quote(value, safe='-_.~')}" for key, value in sorted(query.items()) if value)
        what = self._source.key
        body = await self._client.read(self._request(f"/?{text}", {}), what=what)
        try:
            return _read_page(ET.fromstring(body))  # noqa: S314 - of the service itself, bounded
        except (ET.ParseError, ValueError, TypeError) as error:
            raise DownloadError(Failure.FAILED, f"the list of {what} can't be read: {error}") from error

    def _request(self, path: str, headers: dict[str, str]) -> Request:
        url = URL(self._base + path, encoded=True)
        secret = {}
        if self._credentials is not None:
            secret = sign_get(url, self._source.region, self._credentials, self._now())
        return Request(url=url, headers=headers, secret_headers=secret)


def _read_page(root: ET.Element) -> tuple[list[RemoteFile], str | None]:
    """Read one answer of ListObjectsV2, whatever its namespace."""
    files = [
        RemoteFile(
            path="",
            key=_text(content, "Key"),
            size=int(_text(content, "Size")),
            version=_text(content, "ETag").strip('"'),
        )
        for content in root.iter()
        if content.tag.rpartition("}")[2] == "Contents"
    ]
    is_cut = _text(root, "IsTruncated") == "true"
    return files, _text(root, "NextContinuationToken") if is_cut else None


def _text(element: ET.Element, name: str) -> str:
    """Read a child's text; empty where there is none."""
    return next((c.text or "" for c in element if c.tag.rpartition("}")[2] == name), "")
