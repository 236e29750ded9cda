"""How far a download is, and a small server that tells it to whoever has the admin token."""

from __future__ import annotations

import hmac
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

logger = logging.getLogger(__name__)


class Progress:
    """Bytes of each file, their sum, and the version that is being downloaded."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.version = ""
        self.phase = "listing"
        self._loaded: dict[str, int] = {}

    @property
    def loaded_bytes(self) -> int:
        """Return how many bytes are on the disk."""
        return sum(self._loaded.values())

    def set(self, path: str, num_bytes: int) -> None:
        """Note how much of a file there is."""
        self._loaded[path] = num_bytes

    def as_json(self) -> dict[str, object]:
        """Return what `/progress` answers."""
        return {
            "phase": self.phase,
            "version": self.version,
            "loaded_bytes": self.loaded_bytes,
            "total_bytes": self.total_bytes,
        }


@dataclass(frozen=True, kw_only=True)
class ProgressAddress:
    """Where progress is told, and the file with the token that it takes to hear it."""

    host: str
    port: int
    token_file: Path | None


@asynccontextmanager
async def serve_progress(progress: Progress, address: ProgressAddress | None) -> AsyncIterator[int]:
    """Answer GET /progress while the block runs; yields the port. Without an address nothing listens."""
    if address is None:
        yield 0
        return
    runner = web.AppRunner(make_app(progress, address.token_file), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, address.host, address.port).start()
        port: int = runner.addresses[0][1]
        yield port
    finally:
        await runner.cleanup()


def make_app(progress: Progress, token_file: Path | None) -> web.Application:
    """Build the application; a token file that can't be read lets nobody in."""

    async def answer(request: web.Request) -> web.Response:
        if token_file is not None and not _is_allowed(request, token_file):
            return web.json_response({"error": "the admin token is missing or wrong"}, status=401)
        return web.json_response(progress.as_json())

    app = web.Application()
    app.router.add_get("/progress", answer)
    return app


def _is_allowed(request: web.Request, token_file: Path) -> bool:
    try:
        token = token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("the admin token can't be read: %s", error)
        return False
    given = request.headers.get("Authorization", "").encode()
    return bool(token) and hmac.compare_digest(given, f"Bearer {token}".encode())
