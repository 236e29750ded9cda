"""Builds the images of the repository's Dockerfile with buildah, once per content.

An image is keyed by everything that goes into it; the result lies in the cache as an OCI layout, from
which clusters are filled. The package indexes of this machine are lent to the build by mounts, so that
the Dockerfile names none.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness import buildah
from harness.baseimage import ensure_base_image
from harness.cache import cache_root, locked
from harness.errors import HarnessError
from harness.imagestore import oci_layout
from harness.oci import StoredImage
from harness.prerequisites import NODE_TOOLS, ensure_tools, require_linux_root
from harness.shell import step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REPOSITORY = Path(__file__).resolve().parents[3]
_SOURCES = (
    "Dockerfile",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "engine",
    "kernels",
    "operator",
    "gateway",
    "bench",
)
# Longer than a whole run of the tests takes.
_IN_USE_SECONDS = 3 * 3600
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target of the Dockerfile and the reference that tests know it by."""

    name: str
    repository: str
    tag: str = "test"

    @property
    def reference(self) -> str:
        """Return the image's reference in a cluster."""
        return f"{self.repository}:{self.tag}"


TARGETS = {
    target.name: target
    for target in (
        Target(name="operator", repository="localhost/tidemill-operator"),
        Target(name="engine-sim", repository="localhost/tidemill-engine-sim"),
        Target(name="engine", repository="localhost/tidemill-engine"),
    )
}
SLIM = ("operator", "engine-sim")


def ensure_images(names: Iterable[str]) -> tuple[StoredImage, ...]:
    """Build the targets that are not in the cache for today's sources, and return all of them."""
    targets = [_target(name) for name in names]
    if not targets:
        return ()
    require_linux_root()
    ensure_tools(NODE_TOOLS)
    key = _content_key()
    layout = oci_layout()
    with locked("oci"):
        for target in targets:
            if layout.find(f"{target.name}-{key}") is None:
                _build(target, key)
            layout.note_use(f"{target.name}-{key}")
        _forget_older(targets)
    return tuple(_stored(target, key) for target in targets)


def _target(name: str) -> Target:
    if name not in TARGETS:
        raise HarnessError(f"no image {name!r}: there are {', '.join(TARGETS)}")
    return TARGETS[name]


def _stored(target: Target, key: str) -> StoredImage:
    digest = oci_layout().find(f"{target.name}-{key}")
    if digest is None:
        raise HarnessError(f"{target.name} was built and is not in {oci_layout().path}")
    return StoredImage(reference=target.reference, digest=digest, layout=oci_layout().path)


def _content_key() -> str:
    """Return a digest of every file that goes into an image."""
    digest = hashlib.sha256()
    for path in _source_files():
        digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _source_files() -> Iterator[Path]:
    for name in _SOURCES:
        path = REPOSITORY / name
        if path.is_file():
            yield path
            continue
        for file in sorted(path.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts and ".egg-info" not in str(file):
                yield file


def _forget_older(targets: list[Target]) -> None:
    """Drop what other sources built for these targets, so that the cache does not grow.

    What was used in the last hours stays: the tests of another tree may be running with it.
    """
    layout, before = oci_layout(), time.time() - _IN_USE_SECONDS
    built = {target.name for target in targets}
    names = [
        e.get("annotations", {}).get("org.opencontainers.image.ref.name", "") for e in layout.descriptors()
    ]
    stale = [n for n in names if n.rpartition("-")[0] in built and layout.last_use(n) < before]
    if stale:
        buildah.forget_unused()
        layout.keep_only(name for name in names if name not in stale)


def _build(target: Target, key: str) -> None:
    ensure_base_image()
    tag = f"localhost/tidemill-build/{target.name}:latest"
    log = cache_root() / "logs" / f"image-{target.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    options = ("--pull-never", "--isolation", "chroot", "--network", "host", "--layers")
    volumes = [word for volume in _volumes() for word in ("--volume", volume)]
    what = ("--target", target.name, "--tag", tag, "--file", REPOSITORY / "Dockerfile", REPOSITORY)
    with step(f"building the image {target.name} (log: {log})"):
        buildah.build(log, *options, *volumes, *what)
    with step(f"writing the image {target.name}"):
        buildah.export(tag, oci_layout(), f"{target.name}-{key}")


def _volumes() -> Iterator[str]:
    """Yield what the build borrows from this machine: certificates and the package index' settings."""
    folder = cache_root() / "build-config"
    (folder / "uv").mkdir(parents=True, exist_ok=True)
    if _CERTIFICATES.exists():
        yield f"{_CERTIFICATES}:{_CERTIFICATES}:ro"
    index = os.environ.get("PIP_INDEX_URL") or os.environ.get("UV_INDEX_URL")
    (folder / "pip.conf").write_text("[global]\n" + (f"index-url = {index}\n" if index else ""))
    uv_index = f'[[index]]\nurl = "{index}"\ndefault = true\n' if index else ""
    (folder / "uv" / "uv.toml").write_text(f"native-tls = true\n{uv_index}")
    yield f"{folder}/pip.conf:/etc/pip.conf:ro"
    yield f"{folder}/uv:/etc/uv:ro"
