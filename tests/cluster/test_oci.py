"""Images on disk: what is written is found, pruned, and streamed without what is known already."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING

import pytest
from harness.errors import HarnessError
from harness.oci import OciLayout, StoredImage, write_archive

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def layout(tmp_path: Path) -> OciLayout:
    return OciLayout(tmp_path / "oci")


def write_image(layout: OciLayout, name: str, content: str) -> str:
    program = layout.path.parent / f"program-{name}"
    program.write_text(content)
    return layout.write_single_file_image(name, program, "65532:65532")


def archive_members(image: StoredImage, known: set[str]) -> dict[str, bytes]:
    out = io.BytesIO()
    write_archive(image, known, out)
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        files = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_a_written_image_is_found_by_its_name(layout: OciLayout) -> None:
    digest = write_image(layout, "one", "first")
    assert layout.find("one") == digest
    assert layout.find("two") is None


def test_writing_a_name_again_replaces_it(layout: OciLayout) -> None:
    first = write_image(layout, "one", "first")
    second = write_image(layout, "one", "second")
    assert first != second
    assert layout.find("one") == second
    assert len(layout.descriptors()) == 1


def test_pruning_keeps_the_blobs_of_what_stays_and_no_others(layout: OciLayout) -> None:
    kept = write_image(layout, "kept", "first")
    dropped = write_image(layout, "dropped", "second")
    layout.keep_only(["kept"])
    assert layout.find("dropped") is None
    assert not layout.blob(dropped).exists()
    assert all(layout.blob(digest).exists() for digest in layout.blobs_of(kept))
    assert len(list(layout.blob(kept).parent.iterdir())) == len(layout.blobs_of(kept))


def test_an_archive_leaves_out_known_blobs_and_names_the_image(layout: OciLayout) -> None:
    digest = write_image(layout, "one", "first")
    image = StoredImage(reference="localhost/one:test", digest=digest, layout=layout.path)
    layer = layout.blobs_of(digest)[0]
    everything = archive_members(image, set())
    rest = archive_members(image, {layer})
    assert everything.keys() - rest.keys() == {f"blobs/{layer.replace(':', '/')}"}
    entry = json.loads(rest["index.json"])["manifests"][0]
    assert entry["digest"] == digest
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/one:test"


def test_an_image_that_is_not_there_is_named_in_the_error(layout: OciLayout) -> None:
    with pytest.raises(HarnessError, match="sha256:abc"):
        layout.blobs_of("sha256:abc")
