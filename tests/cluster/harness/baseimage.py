"""Makes `python:3.11-slim` from Debian packages where no image registry can be reached.

The result has what the Dockerfile relies on and the official image also has: Debian, python and pip
on the path. The mirror is the one that apt itself is configured with.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.buildah import buildah
from harness.cache import cache_root
from harness.errors import UnavailableError
from harness.shell import run, step

BASE_IMAGE = "docker.io/library/python:3.11-slim"
_SUITE = "bookworm"  # the Debian release whose Python is 3.11
_PACKAGES = "ca-certificates,python3,python3-pip,python3-venv"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NOT_NEEDED = (
    "var/cache/apt/archives",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
)


def ensure_base_image() -> str:
    """Return the reference of the base image, built once into buildah's storage."""
    if buildah("images", "--quiet", "--filter", f"reference={BASE_IMAGE}").strip():
        return BASE_IMAGE
    rootfs = cache_root() / "base-rootfs"
    shutil.rmtree(rootfs, ignore_errors=True)
    with step(f"making the base image {BASE_IMAGE} from Debian packages (once)"):
        keyring = (f"--keyring={_KEYRING}",) if _KEYRING.exists() else ()
        options = ("--variant=minbase", f"--include={_PACKAGES}", *keyring)
        run("debootstrap", *options, _SUITE, rootfs, _mirror())
        _make_like_the_official_image(rootfs)
        container = buildah("from", "scratch").strip()
        try:
            buildah("copy", "--quiet", container, rootfs, "/")
            buildah("config", "--env", _PATH, "--cmd", "python3", container)
            buildah("commit", "--quiet", container, BASE_IMAGE)
        finally:
            buildah("rm", container)
            shutil.rmtree(rootfs, ignore_errors=True)
    return BASE_IMAGE


def _mirror() -> str:
    """Return the package mirror that apt uses for the release."""
    targets = run(
        "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {_SUITE}"
    )
    for uri in targets.stdout.splitlines():
        if uri.strip():
            return uri.strip()
    raise UnavailableError(f"apt knows no mirror of Debian {_SUITE}, which the base image is made from")


def _make_like_the_official_image(rootfs: Path) -> None:
    for name, target in (("python", "python3"), ("python3", "python3"), ("pip", "pip3")):
        (rootfs / "usr/local/bin" / name).symlink_to(f"/usr/bin/{target}")
    (rootfs / "usr/lib/python3.11/EXTERNALLY-MANAGED").unlink(missing_ok=True)
    for folder in _NOT_NEEDED:
        shutil.rmtree(rootfs / folder, ignore_errors=True)
        (rootfs / folder).mkdir(parents=True)
