"""Google Cloud Storage by its JSON API: list, and GET of one generation of an object.

A service account's JSON key is turned into a token by a signed assertion (RFC 7523). Where the key says that
tokens come from is ignored: that would be an address of the user's choice. Without a key only public buckets
can be read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime
from urllib.parse import quote

import msgspec
from yarl import URL

from tidemill_engine.download.errors import DownloadError, Failure
from tidemill_engine.download.http import HttpClient, Request
from tidemill_engine.download.listing import list_prefix, listing_of
from tidemill_engine.download.selection import MAX_FILES, Digest, RemoteFile
from tidemill_engine.download.service import Listing
from tidemill_engine.download.source import GcsSource

PUBLIC_ENDPOINT = URL("https://storage.googleapis.com")
TOKEN_URL = URL("https://oauth2.googleapis.com/token")
SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_TOKEN_SECONDS = 3600
_SPARE_SECONDS = 300


class _Object(msgspec.Struct, rename="camel"):
    name: str
    size: str
    generation: str
    md5_hash: str | None = None


class _Page(msgspec.Struct, rename="camel"):
    items: list[_Object] = []
    next_page_token: str | None = None


class _Key(msgspec.Struct):
    client_email: str
    private_key: str


class _Token(msgspec.Struct):
    access_token: str


class GcsService:
    """One prefix of one bucket."""

    def __init__(
        self,
        client: HttpClient,
        source: GcsSource,
        key: str | None,
        now: Callable[[], datetime],
        endpoint: URL | None = None,
    ) -> None:
        self._client = client
        self._source = source
        self._key = key
        self._now = now
        base = str(endpoint or PUBLIC_ENDPOINT).rstrip("/")
        self._token_url = TOKEN_URL if endpoint is None else URL(f"{base}/token")
        self._base = f"{base}/storage/v1/b/{quote(source.bucket, safe='')}/o"
        self._token = ""
        self._token_until = 0.0

    async def list_files(self) -> Listing:
        """List the objects below the prefix, page by page."""
        files: list[RemoteFile] = []
        page_token = ""
        while True:
            page = await self._list_page(page_token)
            files += [_remote_file(found) for found in page.items]
            if not page.next_page_token or len(files) > MAX_FILES:
                return listing_of(self._source.prefix, files, f"gs://{self._source.bucket}")
            page_token = page.next_page_token

    async def request_for(self, file: RemoteFile, version: str) -> Request:
        """Give the request for the listed generation of an object."""
        del version
        path = f"/{quote(file.key, safe='')}?alt=media&generation={file.version}"
        return Request(url=URL(self._base + path, encoded=True), secret_headers=await self._authorization())

    async def _list_page(self, page_token: str) -> _Page:
        query = {
            "prefix": list_prefix(self._source.prefix),
            "delimiter": "/",
            "pageToken": page_token,
            "fields": "items(name,size,generation,md5Hash),nextPageToken",
        }
        text = "&".join(f"{key}={quote(value, safe='')}" for key, value in query.items() if value)
        url = URL(f"{self._base}?{text}", encoded=True)
        what = self._source.key
        body = await self._client.read(
            Request(url=url, secret_headers=await self._authorization()), what=what
        )
        try:
            return msgspec.json.decode(body, type=_Page)
        except msgspec.MsgspecError as error:
            raise DownloadError(Failure.FAILED, f"the list of {what} can't be read: {error}") from error

    async def _authorization(self) -> dict[str, str]:
        """Give the header with a token that is good for some minutes more."""
        if self._key is None:
            return {}
        now = self._now().timestamp()
        if now > self._token_until - _SPARE_SECONDS:
            form = {"grant_type": _GRANT, "assertion": _assertion(self._key, int(now))}
            body = await self._client.post_form(self._token_url, form, what="an access token")
            try:
                self._token = msgspec.json.decode(body, type=_Token).access_token
            except msgspec.MsgspecError:
                raise DownloadError(Failure.UNAUTHORIZED, "Google's answer holds no access token") from None
            self._token_until = now + _TOKEN_SECONDS
        return {"Authorization": f"Bearer {self._token}"}


def _assertion(key: str, now: int) -> str:
    """Sign who we are and what for, as RFC 7523 has it."""
    try:
        account = msgspec.json.decode(key, type=_Key)
        private_key = _load_private_key(account.private_key)
    except (msgspec.MsgspecError, ValueError):
        message = "GOOGLE_SERVICE_ACCOUNT_KEY in spec.model.secretRef is no service account's JSON key"
        raise DownloadError(Failure.UNAUTHORIZED, message) from None
    claims = {
        "iss": account.client_email,
        "scope": SCOPE,
        "aud": str(TOKEN_URL),
        "iat": now,
        "exp": now + _TOKEN_SECONDS,
    }
    head = {"alg": "RS256", "typ": "JWT"}
    signed = ".".join(_base64url(json.dumps(part).encode()) for part in (head, claims))
    return f"{signed}.{_base64url(private_key(signed.encode()))}"


def _load_private_key(pem: str) -> Callable[[bytes], bytes]:
    """Return what signs with an RSA key."""
    try:
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415 - for these keys alone
        from cryptography.hazmat.primitives.asymmetric import padding, rsa  # noqa: PLC0415
    except ModuleNotFoundError as error:
        message = "gs:// with a key needs the Python package cryptography, which is not installed here"
        raise DownloadError(Failure.FAILED, message) from error
    key = serialization.load_pem_private_key(pem.encode(), password=None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ValueError("not an RSA key")  # noqa: TRY004 - the value of a key is wrong
    return lambda text: key.sign(text, padding.PKCS1v15(), hashes.SHA256())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _remote_file(found: _Object) -> RemoteFile:
    digest = (
        None if found.md5_hash is None else Digest(kind="md5", value=base64.b64decode(found.md5_hash).hex())
    )
    return RemoteFile(path="", key=found.name, size=int(found.size), version=found.generation, digest=digest)
