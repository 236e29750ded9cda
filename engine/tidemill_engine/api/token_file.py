"""A secret that stands in a file.

Knows when to read it again. Does not know what the secret is for.
"""

from __future__ import annotations

import logging
from pathlib import Path

logger = logging.getLogger(__name__)


class TokenFile:
    """A secret in a file, read again whenever the file changes, as mounted Secrets do."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._token = ""

    def token(self) -> str:
        """Return the current token; an empty one, which nothing matches, where there is none to read."""
        try:
            status = self._path.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
            if seen != self._seen:
                self._token = self._path.read_text().strip()
                self._seen = seen
                logger.info("read the admin token from %s", self._path)
        except (OSError, UnicodeDecodeError) as error:
            logger.warning("refusing admin requests: the token can't be read: %s", error)
            self._token, self._seen = "", None
        return self._token
