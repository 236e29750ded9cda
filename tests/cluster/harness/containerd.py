"""Talks to one containerd through ctr: what it has, and giving it an image."""

from __future__ import annotations

import contextlib
import subprocess
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.kubectl import wait_until
from harness.oci import OciLayout, StoredImage, write_archive
from harness.shell import run

if TYPE_CHECKING:
    from pathlib import Path

_NAMESPACE = "k8s.io"


def ctr(socket: Path, *arguments: object, check: bool = True) -> str:
    """Run ctr in the namespace of Kubernetes and return what it printed."""
    return run("ctr", "-a", socket, "-n", _NAMESPACE, *arguments, check=check).stdout


def wait_until_up(socket: Path, *, timeout_seconds: float = 60) -> None:
    """Wait until containerd answers."""

    def answers() -> bool:
        return socket.exists() and run("ctr", "-a", socket, "version", check=False).returncode == 0

    wait_until("containerd", answers, timeout_seconds=timeout_seconds)


def images(socket: Path) -> dict[str, str]:
    """Return the digest of each image by its reference."""
    rows = [line.split() for line in ctr(socket, "images", "ls").splitlines()[1:]]
    return {row[0]: row[2] for row in rows if len(row) > 2}


def load(socket: Path, image: StoredImage) -> bool:
    """Import an image unless it is there; return whether it was imported."""
    if images(socket).get(image.reference) == image.digest:
        return False
    known = set(ctr(socket, "content", "ls", "-q").split())
    missing = [b for b in OciLayout(image.layout).blobs_of(image.digest) if b not in known]
    command = ["ctr", "-a", str(socket), "-n", _NAMESPACE, "images", "import", "-"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if process.stdin is None:
        raise HarnessError("ctr has no standard input")
    with contextlib.suppress(BrokenPipeError):  # ctr ended early; its output below says why
        write_archive(image, known, process.stdin)
    output, _ = process.communicate()
    if process.returncode != 0:
        raise HarnessError(f"importing {image.reference} ({len(missing)} blobs): {output.decode()}")
    return True
