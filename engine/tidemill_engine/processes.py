"""What processes of the core have in common: how they begin, with whom they die, how their end is told."""

from __future__ import annotations

import ctypes
import logging
import os
import signal

logger = logging.getLogger(__name__)

EXIT_CLEAN = 0
EXIT_LOAD_FAILED = 3
EXIT_CORE_FAILED = 4
_PR_SET_PDEATHSIG = 1
_OPENMP_SPIN_COUNT = "10000"
"""How often an idle OpenMP thread looks for work before it sleeps: some 0.2 ms, more than between operators.

libgomp's own default spins so long that beside other busy processes a prompt took three to five times as
long. Read once by libgomp, when torch loads it.
"""


def set_up_core_process(log_level: str, who: str = "") -> None:
    """Log as told, spin little, and die with the parent."""
    layout = f"%(asctime)s %(levelname)s{who} %(name)s: %(message)s"
    logging.basicConfig(level=log_level.upper(), format=layout)
    os.environ.setdefault("GOMP_SPINCOUNT", _OPENMP_SPIN_COUNT)
    bind_to_parent()


def bind_to_parent() -> None:
    """Die with the parent, and leave the parent to say when to stop: signals to the group are not ours."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        logger.warning("PDEATHSIG can't be set (errno %d); the socket alone tells", ctypes.get_errno())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def describe_exit(returncode: int) -> str:
    """Say how a process ended, with a guess at the usual reason for SIGKILL."""
    if returncode >= 0:
        return f"exit status {returncode}"
    name = signal.Signals(-returncode).name
    return f"{name}, as when out of memory" if name == "SIGKILL" else name
