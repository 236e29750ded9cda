"""A whole download in its order: lock, list, fetch, finish, link.

Knows the order and the time that all of it may take. What a killed run has left, the next goes on with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tidemill_engine.download.errors import DownloadError, Failure
from tidemill_engine.download.fetch import Fetcher, Patience
from tidemill_engine.download.http import HttpClient, TransientError
from tidemill_engine.download.progress import Progress
from tidemill_engine.download.selection import RemoteFile
from tidemill_engine.download.service import Listing, Service
from tidemill_engine.download.source import HubSource, Source
from tidemill_engine.download.store import Store, link

logger = logging.getLogger(__name__)

NUM_AT_ONCE = 4
LOG_SECONDS = 10.0
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to download, by which service, to where."""

    source: Source
    service: Service
    client: HttpClient
    directory: Path
    link: Path | None = None
    timeout_seconds: float = 3600.0
    patience: Patience = field(default_factory=Patience)


async def download(job: Job, progress: Progress) -> Path:
    """Have the model on the disk and return its folder or file; raise DownloadError when that can't be."""
    try:
        async with asyncio.timeout(job.timeout_seconds):
            telling = asyncio.create_task(_tell(progress))
            try:
                model = await _download(job, progress)
            finally:
                telling.cancel()
    except TimeoutError as error:
        raise DownloadError(
            Failure.TIMEOUT,
            f"{progress.loaded_bytes} of {progress.total_bytes} bytes were downloaded within "
            f"{job.timeout_seconds:g} s (spec.model.loadTimeout); the next attempt goes on from there",
        ) from error
    if job.link is not None:
        link(model, job.link)
    progress.phase = "downloaded"
    logger.info("%s is at %s", job.source.key, model)
    return model


async def _download(job: Job, progress: Progress) -> Path:
    store = Store.of(job.directory, job.source.key)
    pinned = job.source.revision if isinstance(job.source, HubSource) and job.source.is_pinned else None
    if pinned is not None and (there := store.whole(pinned)) is not None:
        logger.info("commit %s is there already: the hub is not asked", pinned)
        return _model_in(there, progress, pinned)
    async with store.locked():
        listing = await _patiently(job.service.list_files, job.patience)
        progress.version, progress.total_bytes = listing.version, listing.selection.total_bytes
        there = store.whole(listing.version)
        if there is None:
            there = await _fill(job, store, listing, progress)
        return _model_in(there, progress, listing.version)


async def _fill(job: Job, store: Store, listing: Listing, progress: Progress) -> Path:
    partial = store.begin(listing.version, listing.selection)
    progress.phase = "downloading"
    fetcher = Fetcher(client=job.client, service=job.service, progress=progress, patience=job.patience)
    slots = asyncio.Semaphore(NUM_AT_ONCE)

    async def fetch(file: RemoteFile) -> None:
        async with slots:
            target = partial / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            await fetcher.fetch(file, listing.version, target)

    try:
        async with asyncio.TaskGroup() as group:
            for file in listing.selection.files:
                group.create_task(fetch(file))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None  # of several files that fail at once, the first says it
    return store.finish(listing.version)


def _model_in(folder: Path, progress: Progress, version: str) -> Path:
    """Return what the engine is to load: the folder, or the one .gguf file that is all of it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    for path, size in sizes.items():
        progress.set(path, size)
    progress.version, progress.total_bytes = version, sum(sizes.values())
    return files[0] if len(files) == 1 and files[0].suffix == ".gguf" else folder


async def _patiently(action: Callable[[], Awaitable[T]], patience: Patience) -> T:
    """Try something again while that may help."""
    for attempt in range(1, patience.max_attempts + 1):
        try:
            return await action()
        except TransientError as error:
            if attempt == patience.max_attempts:
                message = f"{error.message} (after {attempt} attempts)"
                raise DownloadError(Failure.FAILED, message) from error
            seconds = patience.seconds_before(attempt, error.retry_after_seconds)
            logger.warning("trying again in %.0f s: %s", seconds, error.message)
            await patience.sleep(seconds)
    raise AssertionError("an attempt returns or raises")


async def _tell(progress: Progress) -> None:
    while True:
        await asyncio.sleep(LOG_SECONDS)
        logger.info("%s: %d of %d bytes", progress.phase, progress.loaded_bytes, progress.total_bytes)
