# ruff: noqa: N818 - the names are those of the architecture, which says what went wrong, not "Error"
"""Every error the engine raises on purpose, for both processes.

Knows what went wrong and how to say it to a person. Does not know HTTP status codes, exit codes or sockets:
the API process and the core's entry point translate, each in one place.
"""

from __future__ import annotations


class EngineError(Exception):
    """The base of all of them; `message` is written for the person who reads it."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class InvalidConfig(EngineError):
    """A flag or a setting holds a value that can't work."""


class InvalidRequest(EngineError):
    """The request itself is wrong; sending it again won't help."""


class ContextLengthExceeded(InvalidRequest):
    """The prompt leaves no room for a single output token."""


class ModelNotFound(EngineError):
    """The request names a model that is not served here."""


class RequestTooLarge(EngineError):
    """The body is longer than the engine reads."""


class Overloaded(EngineError):
    """Too much is waiting; try again after `retry_after_seconds`."""

    def __init__(self, message: str, *, retry_after_seconds: int = 1) -> None:
        super().__init__(message, code="overloaded")
        self.retry_after_seconds = retry_after_seconds


class EngineUnavailable(EngineError):
    """The engine is loading, draining or has lost its core."""


class ModelLoadError(EngineError):
    """The model can't be loaded; `reason` is CamelCase, fit for a Kubernetes condition."""

    def __init__(self, message: str, *, reason: str = "ModelLoadFailed") -> None:
        super().__init__(message)
        self.reason = reason


class PeerGone(EngineError):
    """The process at the other end of the socket has closed it or died."""


class FrameTooLarge(EngineError):
    """A frame is longer than the agreed bound, so the stream can't be trusted any more."""
