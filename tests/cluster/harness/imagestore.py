"""Keeps unpacked images between clusters, so that a new cluster has them in no time.

The store is a containerd root folder of its own that never runs a pod. A cluster's root is seeded from
it: metadata is copied, blobs are hard-linked, snapshots are symbolic links, which only ever serve as
lower layers. So an image is unpacked once per machine, and a cluster can delete only its own links.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

from harness import containerd
from harness.cache import cache_root, locked
from harness.configs import PAUSE_IMAGE
from harness.layout import MAX_INDEX, Layout
from harness.oci import OciLayout, StoredImage
from harness.processes import supervisor_pid
from harness.shell import ENDS_WITH_US, step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.binaries import Binaries

_PAUSE_NAME = "pause"
_PAUSE_USER = "65535:65535"
_KEEP = "keep.invalid/"
_BOLT = "io.containerd.metadata.v1.bolt"
_BLOBS = "io.containerd.content.v1.content/blobs/sha256"
_SNAPSHOTTER = "io.containerd.snapshotter.v1.overlayfs"


def oci_layout() -> OciLayout:
    """Return the layout that images are built into."""
    return OciLayout(cache_root() / "oci")


def pause_image(binaries: Binaries) -> StoredImage:
    """Return the image that holds a pod's namespaces, written when it is missing."""
    layout = oci_layout()
    name = f"{_PAUSE_NAME}-{binaries.folder.name}"
    with locked("oci"):
        digest = layout.find(name) or layout.write_single_file_image(name, binaries["pause"], _PAUSE_USER)
    return StoredImage(reference=PAUSE_IMAGE, digest=digest, layout=layout.path)


def load(socket: Path, image: StoredImage) -> None:
    """Put an image into a running containerd."""
    with step(f"loading {image.reference}"):
        containerd.load(socket, image)


def ensure_unpacked(binaries: Binaries, images: tuple[StoredImage, ...]) -> None:
    """Unpack what is not in the store yet: the pause image and the images asked for."""
    with locked("images"):
        _ensure_unpacked(binaries, images)


def seed(root: Path, binaries: Binaries, images: tuple[StoredImage, ...]) -> None:
    """Fill a new cluster's containerd folder with the pause image and the images asked for."""
    with locked("images"):
        _ensure_unpacked(binaries, images)
        _clone(_store(), root)


def _store() -> Path:
    return cache_root() / "images"


def _ensure_unpacked(binaries: Binaries, images: tuple[StoredImage, ...]) -> None:
    missing = _missing(_store(), (pause_image(binaries), *images))
    if missing:
        _import(_store(), missing)


def _marker(store: Path, image: StoredImage) -> Path:
    safe = image.reference.replace("/", "_").replace(":", "_")
    return store / "present" / safe


def _missing(store: Path, wanted: tuple[StoredImage, ...]) -> list[StoredImage]:
    missing = []
    for image in wanted:
        marker = _marker(store, image)
        if not marker.exists() or marker.read_text() != image.digest:
            missing.append(image)
    return missing


def _import(store: Path, missing: list[StoredImage]) -> None:
    (store / "present").mkdir(parents=True, exist_ok=True)
    others_run = any(supervisor_pid(Layout.of(index)) for index in range(MAX_INDEX + 1) if _exists(index))
    with _bare_containerd(store) as socket:
        for image in missing:
            with step(f"unpacking {image.reference} (once)"):
                containerd.load(socket, image)
            # A running cluster may still read the layers of the image that this one replaces.
            keep = f"{_KEEP}{image.digest.removeprefix('sha256:')}"
            containerd.ctr(socket, "images", "tag", image.reference, f"{keep}:1", check=False)
            _share_blobs(store, image)
            _marker(store, image).write_text(image.digest)
        if not others_run:
            _prune(socket)


def _share_blobs(store: Path, image: StoredImage) -> None:
    """Make the layout's blobs and the store's the same files, since the engine's take gigabytes."""
    layout = OciLayout(image.layout)
    for digest in layout.blobs_of(image.digest):
        stored, built = store / "root" / _BLOBS / digest.partition(":")[2], layout.blob(digest)
        if stored.exists() and not stored.samefile(built):
            partial = built.with_suffix(".partial")
            partial.hardlink_to(stored)
            partial.rename(built)


def _exists(index: int) -> bool:
    return Layout.of(index).state.exists()


def _prune(socket: Path) -> None:
    """Remove images that no reference but ours to keep them names."""
    known = containerd.images(socket)
    current = {digest for reference, digest in known.items() if not reference.startswith(_KEEP)}
    stale = [r for r, digest in known.items() if r.startswith(_KEEP) and digest not in current]
    if stale:
        containerd.ctr(socket, "images", "rm", "--sync", *stale)


@contextmanager
def _bare_containerd(store: Path) -> Iterator[Path]:
    """Run a containerd without Kubernetes on the store, in a mount namespace of its own."""
    socket, config = store / "containerd.sock", store / "containerd.toml"
    socket.unlink(missing_ok=True)
    config.write_text(
        f'version = 2\nroot = "{store}/root"\nstate = "/run/containerd"\noom_score = 0\n'
        f'disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]\n'
        f'[grpc]\n  address = "{socket}"\n'
    )
    namespaces = ("unshare", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc")
    jail = (*ENDS_WITH_US, *namespaces)
    script = f"mount -t tmpfs tmpfs /run && exec containerd -c {config}"
    with (store / "containerd.log").open("ab") as log:
        process = subprocess.Popen(
            (*jail, "sh", "-c", script), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        containerd.wait_until_up(socket)
        yield socket
    finally:
        process.kill()
        process.wait()
        socket.unlink(missing_ok=True)


def _clone(store: Path, root: Path) -> None:
    source = store / "root"
    for folder, name in ((_BOLT, "meta.db"), (_SNAPSHOTTER, "metadata.db")):
        (root / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / folder / name, root / folder / name)
    blobs = root / _BLOBS
    blobs.mkdir(parents=True)
    for blob in (source / _BLOBS).iterdir():
        (blobs / blob.name).hardlink_to(blob)
    snapshots = root / _SNAPSHOTTER / "snapshots"
    snapshots.mkdir()
    for snapshot in (source / _SNAPSHOTTER / "snapshots").iterdir():
        (snapshots / snapshot.name).symlink_to(snapshot)
