"""The one error of the cache's bookkeeping."""

from __future__ import annotations


class IntegrityError(RuntimeError):
    """The books do not balance: a bug, found before it spoils a request's tokens."""
