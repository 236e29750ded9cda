"""One file onto the disk: resumed where it stopped, retried while that helps, verified before it counts.

Knows ranges, digests and patience. Refuses to know services (`Service.request_for` gives the request) and
folders.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tidemill_engine.download.errors import DownloadError, Failure
from tidemill_engine.download.http import HttpClient, TransientError, check_status, chunks_of
from tidemill_engine.download.progress import Progress
from tidemill_engine.download.selection import RemoteFile
from tidemill_engine.download.service import Service

logger = logging.getLogger(__name__)

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How often and how soon to try again; an attempt that brought bytes starts the count anew."""

    max_attempts: int = 8
    first_seconds: float = 1.0
    max_seconds: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def seconds_before(self, attempt: int, retry_after_seconds: float | None) -> float:
        """Return how long to wait before an attempt, the second one being number 1."""
        if retry_after_seconds is not None:
            return min(retry_after_seconds, self.max_seconds)
        return min(self.first_seconds * 2.0 ** (attempt - 1), self.max_seconds)


@dataclass(frozen=True, kw_only=True)
class Fetcher:
    """What fetching needs besides the file."""

    client: HttpClient
    service: Service
    progress: Progress
    patience: Patience

    async def fetch(self, file: RemoteFile, version: str, target: Path) -> None:
        """Bring one file to its place; what is there already is counted and not fetched again."""
        if _is_there(target):
            self.progress.set(file.path, file.size)
            return
        part = target.with_name(f"{target.name}.part")
        attempt, furthest = 0, _size_of(part)
        while not (_is_there(part) and _size_of(part) == file.size):
            try:
                await self._fetch_rest(file, version, part)
            except TransientError as error:
                attempt = 1 if _size_of(part) > furthest else attempt + 1
                furthest = max(furthest, _size_of(part))
                await self._wait(file, attempt, error)
        self.progress.set(file.path, file.size)
        await asyncio.to_thread(_verify, part, file)
        part.replace(target)

    async def _wait(self, file: RemoteFile, attempt: int, error: TransientError) -> None:
        if attempt >= self.patience.max_attempts:
            message = f"{file.path} can't be downloaded after {attempt} attempts: {error.message}"
            raise DownloadError(Failure.FAILED, message) from error
        seconds = self.patience.seconds_before(attempt, error.retry_after_seconds)
        logger.warning("trying %s again in %.0f s: %s", file.path, seconds, error.message)
        await self.patience.sleep(seconds)

    async def _fetch_rest(self, file: RemoteFile, version: str, part: Path) -> None:
        """Ask for what is missing and write it; what the server sends is never more than the file."""
        offset = _size_of(part)
        if offset > file.size:
            _remove(part)
            offset = 0
        request = await self.service.request_for(file, version)
        extra = {"Range": f"bytes={offset}-"} if offset else {}
        async with self.client.get(request, extra) as response:
            if response.status == 412:
                message = f"{file.path} was replaced while it was being downloaded; start again"
                raise DownloadError(Failure.CORRUPT, message)
            if response.status == 416:
                _remove(part)
                raise TransientError(f"the server has no range from {offset} of {file.path}")
            await check_status(response, file.path)
            is_rest = response.status == 206
            if is_rest and not _starts_at(response, offset):
                raise TransientError(f"the server sent another range of {file.path} than was asked for")
            await self._write(response, file, part, offset if is_rest else 0)

    async def _write(
        self, response: aiohttp.ClientResponse, file: RemoteFile, part: Path, offset: int
    ) -> None:
        written = offset
        try:
            with part.open("r+b" if _is_there(part) else "wb") as output:
                output.truncate(offset)
                output.seek(offset)
                self.progress.set(file.path, offset)
                async for chunk in chunks_of(response):
                    written += len(chunk)
                    if written > file.size:
                        message = f"the server sends more of {file.path} than the {file.size} bytes it named"
                        raise DownloadError(Failure.CORRUPT, message)
                    output.write(chunk)
                    self.progress.set(file.path, written)
        except OSError as error:
            if error.errno in _NO_SPACE:
                raise disk_full(part, file.path) from error
            raise DownloadError(Failure.FAILED, f"{part} can't be written: {error}") from error
        if written < file.size:
            raise TransientError(f"{file.path} ended at {written} of {file.size} bytes")


def disk_full(where: Path, what: str) -> DownloadError:
    """Say that a volume is full and what to do about it."""
    return DownloadError(
        Failure.DISK_FULL,
        f"no space is left on {where.parent} for {what}; raise spec.model.cache.size, or the node's disk",
    )


def _is_there(path: Path) -> bool:
    return path.exists()


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _starts_at(response: aiohttp.ClientResponse, offset: int) -> bool:
    return response.headers.get("Content-Range", "").startswith(f"bytes {offset}-")


def _verify(part: Path, file: RemoteFile) -> None:
    """Raise unless the bytes come to the digest; what does not is removed, so that it is fetched anew."""
    if file.digest is not None and digest_of(part, file.digest.kind) != file.digest.value:
        part.unlink()
        message = f"{file.path} is damaged: its {file.digest.kind} is not the one that the service names"
        raise DownloadError(Failure.CORRUPT, message)


def digest_of(path: Path, kind: str) -> str:
    """Return a file's digest of a kind that `Digest` names."""
    with path.open("rb") as data:
        if kind == "git-sha1":
            state = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
            while chunk := data.read(1 << 20):
                state.update(chunk)
            return state.hexdigest()
        return hashlib.file_digest(data, kind).hexdigest()
