"""HTTP for downloads: every redirect is looked at, credentials go to one origin only, bodies are bounded.

Knows statuses that every service means alike. Refuses to retry: `fetch` and `retry` know when that helps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import aiohttp
from yarl import URL

from tidemill_engine.download.errors import DownloadError, Failure
from tidemill_engine.download.guard import AddressPolicy, GuardedResolver

MAX_REDIRECTS = 5
CHUNK_BYTES = 1 << 20
MAX_BODY_BYTES = 64 * 1024**2
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 30.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SAID_BYTES = 300


@dataclass(frozen=True, kw_only=True)
class Request:
    """One GET; `secret_headers` are sent to the URL's own origin and nowhere else."""

    url: URL
    headers: Mapping[str, str] = field(default_factory=dict)
    secret_headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class TransientError(Exception):
    """Trying again may help, after `retry_after_seconds` where the server says so."""

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_seconds = retry_after_seconds


class HttpClient:
    """One session under one policy of addresses."""

    def __init__(self, policy: AddressPolicy, *, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._policy = policy
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)
        connector = aiohttp.TCPConnector(resolver=GuardedResolver(policy), limit=16)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False, trust_env=False
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    @asynccontextmanager
    async def get(
        self, request: Request, extra: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a GET and give the answer that is no redirect; what can't be reached raises TransientError."""
        url = request.url
        for _ in range(MAX_REDIRECTS + 1):
            self._policy.check_url(url)
            headers = {"Accept-Encoding": "identity", **request.headers, **(extra or {})}
            if url.origin() == request.url.origin():
                headers |= request.secret_headers
            with _as_transient(url):
                response = await self._session.get(url, headers=headers, allow_redirects=False)
            async with response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or location is None:
                    yield response
                    return
            url = url.join(URL(location, encoded=True))  # a signature covers every character
        raise DownloadError(
            Failure.FAILED, f"{_shown(request.url)} redirects more than {MAX_REDIRECTS} times"
        )

    async def read(self, request: Request, *, what: str) -> bytes:
        """Read one whole body of bounded size."""
        async with self.get(request) as response:
            await check_status(response, what)
            return await _bounded(response, what)

    async def post_form(self, url: URL, form: Mapping[str, str], *, what: str) -> bytes:
        """Send a form, which holds a credential and so follows no redirect."""
        self._policy.check_url(url)
        with _as_transient(url):
            async with self._session.post(url, data=dict(form), allow_redirects=False) as response:
                await check_status(response, what)
                return await _bounded(response, what)


async def chunks_of(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Read a body piece by piece; a cut connection raises TransientError."""
    with _as_transient(response.url):
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            yield chunk


async def check_status(response: aiohttp.ClientResponse, what: str) -> None:
    """Turn a status that is no success into an error that says what was asked for."""
    status = response.status
    if status in {200, 206}:
        return
    with _as_transient(response.url):
        said = (await response.content.read(_SAID_BYTES)).decode(errors="replace").strip()
    message = f"{response.url.host} answered {status} for {what}" + (
        f": {' '.join(said.split())}" if said else ""
    )
    if status in {401, 403}:
        hint = "; check spec.model.secretRef, and whether the model asks for its terms to be accepted"
        raise DownloadError(Failure.UNAUTHORIZED, message + hint)
    if status == 404:
        raise DownloadError(Failure.NOT_FOUND, message)
    if status == 429 or status >= 500:
        raise TransientError(message, retry_after_seconds=_retry_after(response))
    raise DownloadError(Failure.FAILED, message)


async def _bounded(response: aiohttp.ClientResponse, what: str) -> bytes:
    body = bytearray()
    async for chunk in chunks_of(response):
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise DownloadError(
                Failure.TOO_LARGE, f"the answer for {what} has more than {MAX_BODY_BYTES} bytes"
            )
    return bytes(body)


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else None


@contextmanager
def _as_transient(url: URL) -> Iterator[None]:
    """Turn what the network does into TransientError; a refused address stays what it is."""
    try:
        yield
    except (aiohttp.ClientError, OSError) as error:
        cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise TransientError(f"{_shown(url)}: {cause}") from error


def _shown(url: URL) -> str:
    """Leave out the query: it may hold a signature."""
    return str(url.with_query(None).with_fragment(None))
