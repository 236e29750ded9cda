"""Why a download ends: each kind with the reason that conditions show and the exit code of the container."""

from __future__ import annotations

from enum import Enum

from tidemill_engine.errors import EngineError


class Failure(Enum):
    """A kind of failure: its reason in Kubernetes' form, its exit code."""

    UNAUTHORIZED = ("DownloadUnauthorized", 20)
    NOT_FOUND = ("DownloadNotFound", 21)
    DISK_FULL = ("DownloadDiskFull", 22)
    TIMEOUT = ("DownloadTimeout", 23)
    FAILED = ("DownloadFailed", 24)
    CORRUPT = ("DownloadCorrupt", 25)
    FORBIDDEN_ADDRESS = ("DownloadAddressForbidden", 26)
    UNSUPPORTED = ("ModelFilesUnsupported", 27)
    TOO_LARGE = ("DownloadTooLarge", 28)

    def __init__(self, reason: str, exit_code: int) -> None:
        self.reason = reason
        self.exit_code = exit_code


class DownloadError(EngineError):
    """The download can't go on; `message` is for the person who reads the condition."""

    def __init__(self, failure: Failure, message: str) -> None:
        super().__init__(message)
        self.failure = failure
