"""A cluster's images are links into the store: deleting the cluster's leaves the store whole."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from harness import imagestore
from harness.oci import OciLayout, StoredImage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store" / "root"
    snapshots = root / imagestore._SNAPSHOTTER / "snapshots"
    for folder in (root / imagestore._BOLT, root / imagestore._BLOBS, snapshots / "1" / "fs"):
        folder.mkdir(parents=True)
    (root / imagestore._BOLT / "meta.db").write_text("images")
    (root / imagestore._SNAPSHOTTER / "metadata.db").write_text("snapshots")
    (root / imagestore._BLOBS / "abc").write_text("a layer")
    (snapshots / "1" / "fs" / "file").write_text("unpacked")
    return tmp_path / "store"


def test_a_seeded_root_has_every_image_without_copying_it(store: Path, tmp_path: Path) -> None:
    root = tmp_path / "cluster"
    imagestore._clone(store, root)
    blob = root / imagestore._BLOBS / "abc"
    assert blob.samefile(store / "root" / imagestore._BLOBS / "abc")
    assert (root / imagestore._SNAPSHOTTER / "snapshots" / "1" / "fs" / "file").read_text() == "unpacked"
    assert (root / imagestore._BOLT / "meta.db").read_text() == "images"


def test_removing_a_seeded_root_leaves_the_store_whole(store: Path, tmp_path: Path) -> None:
    root = tmp_path / "cluster"
    imagestore._clone(store, root)
    (root / imagestore._BOLT / "meta.db").write_text("written by a cluster")
    shutil.rmtree(root)
    assert (store / "root" / imagestore._BLOBS / "abc").read_text() == "a layer"
    assert (store / "root" / imagestore._SNAPSHOTTER / "snapshots/1/fs/file").read_text() == "unpacked"
    assert (store / "root" / imagestore._BOLT / "meta.db").read_text() == "images"


def test_only_images_of_another_digest_are_missing(tmp_path: Path) -> None:
    old = StoredImage(reference="localhost/a:test", digest="sha256:1", layout=tmp_path)
    new = StoredImage(reference="localhost/a:test", digest="sha256:2", layout=tmp_path)
    assert imagestore._missing(tmp_path, (old,)) == [old]
    marker = imagestore._marker(tmp_path, old)
    marker.parent.mkdir()
    marker.write_text(old.digest)
    assert imagestore._missing(tmp_path, (old,)) == []
    assert imagestore._missing(tmp_path, (new,)) == [new]


def test_blobs_that_were_unpacked_exist_once_on_disk(store: Path, tmp_path: Path) -> None:
    layout = OciLayout(tmp_path / "oci")
    (tmp_path / "program").write_text("content")
    digest = layout.write_single_file_image("one", tmp_path / "program", "0")
    stored = store / "root" / imagestore._BLOBS / digest.partition(":")[2]
    stored.write_bytes(layout.blob(digest).read_bytes())
    image = StoredImage(reference="localhost/one:test", digest=digest, layout=layout.path)
    imagestore._share_blobs(store, image)
    assert layout.blob(digest).samefile(stored)
    assert len(layout.blobs_of(digest)) == 3
