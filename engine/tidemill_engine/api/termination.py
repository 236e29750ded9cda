"""How the process ends: its exit codes, and the reason it leaves for Kubernetes in the termination log.

Knows the file's format: one JSON object {"reason", "message"} of at most 2 KiB.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

logger = logging.getLogger(__name__)

EXIT_CLEAN = 0
EXIT_USAGE = 2
EXIT_LOAD_FAILED = 3
EXIT_CORE_DIED = 4
DRAIN_TIMEOUT_REASON = "DrainTimeout"
"""The process ended as asked, but requests were cut."""
MAX_LOG_BYTES = 2048
DEFAULT_LOG = Path("/dev/termination-log")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Why the server stops."""

    exit_code: int
    reason: str = "Completed"
    message: str = ""


def default_termination_log() -> Path | None:
    """Return Kubernetes' file where there is one to write."""
    return DEFAULT_LOG if os.access(DEFAULT_LOG, os.W_OK) else None


def termination_record(ending: Ending) -> bytes:
    """Write an ending as JSON, its message cut so that the whole fits."""
    message = ending.message
    while True:
        record = msgspec.json.encode({"reason": ending.reason, "message": message})
        excess = len(record) - MAX_LOG_BYTES
        if excess <= 0:
            return record
        message = message[: max(len(message) - max(excess // 4, 1), 0)]


def write_termination_log(path: Path | None, ending: Ending) -> None:
    """Leave the reason behind unless all is well; a file that can't be written is only logged."""
    if path is None or (ending.exit_code == EXIT_CLEAN and not ending.message):
        return
    try:
        path.write_bytes(termination_record(ending))
    except OSError as error:
        logger.warning("the termination log %s can't be written: %s", path, error)
