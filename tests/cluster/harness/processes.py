"""Finds and ends the supervisor of one cluster through /proc, so that no pid file can go stale."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.layout import Layout

SUPERVISOR_MODULE = "harness.supervisor"
_END_SECONDS = 30


def _command_line(pid: str) -> list[str]:
    try:
        return Path("/proc", pid, "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _pids(layout: Layout) -> dict[int, list[str]]:
    """Return every process whose arguments name this cluster's supervisor and state folder."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            words = _command_line(entry.name)
            if SUPERVISOR_MODULE in words and str(layout.state) in words:
                found[int(entry.name)] = words
    return found


def supervisor_pid(layout: Layout) -> int | None:
    """Return the pid, as the host sees it, of the cluster's pid 1, or None when it does not run."""
    wrappers = ("setsid", "unshare")
    for pid, words in _pids(layout).items():
        if Path(words[0]).name not in wrappers:
            return pid
    return None


def end_supervisor(layout: Layout) -> None:
    """Kill the cluster's pid 1 and what started it, and wait until the kernel has ended all below it."""
    handles = []
    for pid in _pids(layout):
        try:
            handles.append(os.pidfd_open(pid))
        except ProcessLookupError:
            continue
    try:
        for handle in handles:
            try:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for handle in handles:
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            if not poller.poll(_END_SECONDS * 1000):
                raise HarnessError(
                    f"the cluster in {layout.state} did not end {_END_SECONDS} s after SIGKILL"
                )
    finally:
        for handle in handles:
            os.close(handle)
