"""Where downloads lie on a volume that several pods may share, so that each is whole or not there.

    DIRECTORY/NAME-DIGEST/            one per source
        lock                          held by the pod that downloads; the others wait for it
        VERSION.partial/              being filled; a later pod goes on with it
        VERSION/                      whole: renamed when its last file was verified, never changed after

The lock is the kernel's (flock): it ends with the process that holds it, however that ends.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tidemill_engine.download.errors import DownloadError, Failure
from tidemill_engine.download.fetch import disk_full
from tidemill_engine.download.selection import RemoteFile, Selection

logger = logging.getLogger(__name__)

LOCK_POLL_SECONDS = 1.0
SPARE_BYTES = 16 * 1024**2


@dataclass(frozen=True, kw_only=True)
class Store:
    """The folder of one source on the volume."""

    folder: Path

    @classmethod
    def of(cls, directory: Path, key: str) -> Store:
        """Name a source's folder so that a person recognises it and no two share one."""
        name = re.sub(r"[^A-Za-z0-9.]+", "-", key.partition("://")[2]).strip("-.")[:60]
        digest = hashlib.sha256(key.encode()).hexdigest()[:12]
        return cls(folder=directory / f"{name}-{digest}")

    def whole(self, version: str) -> Path | None:
        """Return a version's folder if all of it is there."""
        folder = self.folder / version
        return folder if folder.is_dir() else None

    def begin(self, version: str, selection: Selection) -> Path:
        """Make the folder to fill, and refuse at once what can't fit."""
        partial = self.folder / f"{version}.partial"
        for left in self.folder.glob("*.partial"):
            if left != partial:
                shutil.rmtree(left)  # of a version that has moved on; whoever filled it held the lock
        partial.mkdir(parents=True, exist_ok=True)
        missing = sum(file.size - _present_bytes(partial, file) for file in selection.files)
        free = shutil.disk_usage(partial).free
        if missing + SPARE_BYTES > free:
            error = disk_full(partial, f"{missing} more bytes, of which {free} fit")
            raise error
        return partial

    def finish(self, version: str) -> Path:
        """Declare a version whole."""
        whole = self.folder / version
        (self.folder / f"{version}.partial").rename(whole)
        _sync(self.folder)
        return whole

    @asynccontextmanager
    async def locked(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> AsyncIterator[None]:
        """Hold the source's lock; wait while another pod downloads."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("a") as lock:
            is_told = False
            while not _try_lock(lock.fileno(), self.folder):
                if not is_told:
                    logger.info("another pod is downloading into %s: waiting for it", self.folder)
                    is_told = True
                await sleep(LOCK_POLL_SECONDS)
            yield


def link(target: Path, place: Path) -> None:
    """Lead the engine to a model by a link at a fixed place, replaced in one step."""
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f"{place.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(place)


def _try_lock(descriptor: int, folder: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}:
            message = f"the file system of {folder} has no locks, so replicas can't share it"
            raise DownloadError(Failure.FAILED, message) from error
        raise
    return True


def _present_bytes(partial: Path, file: RemoteFile) -> int:
    for path in (partial / file.path, partial / f"{file.path}.part"):
        if path.exists():
            return min(path.stat().st_size, file.size)
    return 0


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
