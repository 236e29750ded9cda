"""Runs buildah and skopeo on an image storage of our own, so that the machine's is left alone."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cache import cache_root
from harness.errors import HarnessError
from harness.shell import ENDS_WITH_US, run

if TYPE_CHECKING:
    from harness.oci import OciLayout

# The storage mounts its layers; in a mount namespace of its own nothing of it stays on the host.
_MANY_IMAGES = 300
_JAIL = (*ENDS_WITH_US, "unshare", "--mount", "--propagation", "private")


def buildah(*arguments: object) -> str:
    """Run a short buildah command and return what it printed."""
    return run(*_command(), *arguments, env=_env()).stdout


def build(log: Path, *arguments: object) -> None:
    """Run `buildah bud`, its output in a log whose tail an error shows."""
    command = [str(word) for word in (*_command(), "bud", *arguments)]
    with log.open("wb") as file:
        env = {**os.environ, **_env()}
        status = subprocess.call(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env)
    if status != 0:
        raise HarnessError(
            f"buildah bud failed; the end of {log}:\n{log.read_text(errors='replace')[-3000:]}"
        )


def forget_unused() -> None:
    """Remove layers that no image of today stands on, once there are many of them."""
    if len(buildah("images", "--all", "--quiet").split()) > _MANY_IMAGES:
        buildah("rmi", "--prune", "--force")


def export(tag: str, layout: OciLayout, name: str) -> None:
    """Write an image into an OCI layout; layers stay as they are, and those already there are not read."""
    shutil.rmtree(_runroot(), ignore_errors=True)
    source = f"containers-storage:[overlay@{_root()}+{_runroot()}]{tag}"
    options = ("--quiet", "--dest-oci-accept-uncompressed-layers")
    run(*_JAIL, "skopeo", "copy", *options, source, f"oci:{layout.path}:{name}", env=_env())


def _command() -> tuple[object, ...]:
    shutil.rmtree(_runroot(), ignore_errors=True)  # it names mounts of namespaces that are gone
    storage = ("--root", _root(), "--runroot", _runroot(), "--storage-driver", "overlay")
    return (*_JAIL, "buildah", *storage)


def _env() -> dict[str, str]:
    temporary = cache_root() / "buildah" / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return {"BUILDAH_ISOLATION": "chroot", "TMPDIR": str(temporary)}


def _root() -> Path:
    return cache_root() / "buildah" / "root"


def _runroot() -> Path:
    return cache_root() / "buildah" / "run"
