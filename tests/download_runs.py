"""Downloads from stand-ins of the services, as often as asked, with the waiting left out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from model_servers import COMMIT, StandIn
from tidemill_engine.download.errors import DownloadError
from tidemill_engine.download.fetch import Patience
from tidemill_engine.download.gcs import GcsService
from tidemill_engine.download.guard import AddressPolicy
from tidemill_engine.download.http import HttpClient
from tidemill_engine.download.hub import HubService
from tidemill_engine.download.progress import Progress
from tidemill_engine.download.run import Job, download
from tidemill_engine.download.s3 import S3Service
from tidemill_engine.download.source import GcsSource, HubSource, S3Source, parse_source

WEIGHTS = bytes(range(256)) * 4096
FILES = {
    "config.json": b'{"architectures": []}',
    "model.safetensors": WEIGHTS,
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"never",
    "original/model.safetensors": b"another format",
    "README.md": b"words",
}
TAKEN = {"config.json", "model.safetensors", "tokenizer.json"}
PATH = f"/org/model/resolve/{COMMIT}/model.safetensors"
LIST = "/api/models/org/model/revision/main"
NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
Serve = Callable[[StandIn], Awaitable[URL]]


class Run:
    """Downloads from one stand-in, as often as asked."""

    def __init__(self, folder: Path, endpoint: URL, uri: str = "hf://org/model", **secrets: Any) -> None:
        self.folder = folder
        self.endpoint = endpoint
        self.uri = uri
        self.secrets = secrets
        self.progress = Progress()
        self.waits: list[float] = []
        self.revision: str | None = None
        self.timeout_seconds = 60.0
        self.silence_seconds = 30.0

    async def __call__(self) -> Path:
        self.progress = Progress()
        client = HttpClient(AddressPolicy(endpoint=self.endpoint), silence_seconds=self.silence_seconds)
        source = parse_source(self.uri, self.revision)
        try:
            job = Job(
                source=source,
                service=self._service(client, source),
                client=client,
                directory=self.folder / "models",
                link=self.folder / "link" / "current",
                timeout_seconds=self.timeout_seconds,
                patience=Patience(sleep=self._sleep, max_attempts=4),
            )
            return await download(job, self.progress)
        finally:
            await client.close()

    def _service(self, client: HttpClient, source: object) -> HubService | S3Service | GcsService:
        if isinstance(source, HubSource):
            return HubService(client, source, self.secrets.get("token"), self.endpoint)
        if isinstance(source, S3Source):
            return S3Service(client, source, self.secrets.get("credentials"), lambda: NOW, self.endpoint)
        assert isinstance(source, GcsSource)
        return GcsService(client, source, self.secrets.get("key"), lambda: NOW, self.endpoint)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


async def failure_of(run: Run) -> DownloadError:
    """Run a download that must fail, and give its error."""
    with pytest.raises(DownloadError) as failed:
        await run()
    return failed.value


def contents(model: Path) -> dict[str, bytes]:
    """Give what a downloaded folder holds."""
    return {str(p.relative_to(model)): p.read_bytes() for p in model.rglob("*") if p.is_file()}
