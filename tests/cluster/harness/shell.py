"""Running commands and telling a person what takes long; knows nothing of clusters."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

logger = logging.getLogger(__name__)
_TAIL_CHARS = 4000
# Before a command: it is killed when the process that started it ends, however that happens.
ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")


class CommandError(HarnessError):
    """A command ended with a status other than 0."""

    def __init__(self, command: str, returncode: int, output: str) -> None:
        super().__init__(f"{command}: exit status {returncode}\n{output[-_TAIL_CHARS:]}")
        self.returncode = returncode
        self.output = output


def run(
    *command: object,
    check: bool = True,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_seconds: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return what it printed; a failure raises with the output's tail."""
    argv = [str(word) for word in command]
    logger.debug("running %s", shlex.join(argv))
    result = subprocess.run(
        argv,
        check=False,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, **env} if env else None,
        cwd=cwd,
        timeout=timeout_seconds,
    )
    if check and result.returncode != 0:
        raise CommandError(shlex.join(argv), result.returncode, result.stdout + result.stderr)
    return result


def tell(message: str) -> None:
    """Print one line of progress where a person sees it, also below pytest's capture."""
    stream = sys.__stderr__ or sys.stderr
    print(f"[cluster] {message}", file=stream, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Announce a long step and say how long it took."""
    tell(f"{what} ...")
    began = time.monotonic()
    yield
    tell(f"{what}: {time.monotonic() - began:.1f} s")
