"""promtool, Prometheus' checker of rules: taken out of Debian's package into the cache, not installed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from harness.cache import cache_root, locked
from harness.errors import UnavailableError
from harness.shell import CommandError, run, step

PACKAGE = "prometheus"


def ensure_promtool() -> str:
    """Return a promtool: from PATH, else from Debian's archive, fetched once."""
    found = shutil.which("promtool")
    if found:
        return found
    target = cache_root() / "tools" / "promtool-debian" / "promtool"
    with locked("promtool"):
        if not target.exists():
            _fetch(target)
    return str(target)


def _fetch(target: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UnavailableError("promtool is not on PATH, and there is no apt-get to fetch it with")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder, step("fetching promtool from Debian"):
        try:
            try:
                run("apt-get", "download", PACKAGE, cwd=Path(folder))
            except CommandError:
                run("apt-get", "update")
                run("apt-get", "download", PACKAGE, cwd=Path(folder))
            (package,) = Path(folder).glob(f"{PACKAGE}_*.deb")
            run("dpkg-deb", "--extract", package, f"{folder}/content")
        except CommandError as error:
            raise UnavailableError(f"promtool could not be fetched: {error}") from error
        Path(folder, "content", "usr", "bin", "promtool").rename(target)
