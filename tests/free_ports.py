"""Ports for processes that can't be told to take any: free now, and left alone until they listen."""

from __future__ import annotations

import errno
import random
import socket

_PORTS = range(15000, 30000)
"""Below those that a system gives to outgoing connections, which might take one before its process does."""
_MAX_TRIES = 100


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on; two processes hardly ever get the same."""
    for _ in range(_MAX_TRIES):
        port = random.SystemRandom().choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
    raise RuntimeError(f"no port is free among {_PORTS}")
