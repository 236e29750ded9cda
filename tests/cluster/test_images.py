"""The cache of built images: what sources of other days built goes, what another tree uses now stays."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from harness import buildah, images
from harness.images import TARGETS
from harness.oci import OciLayout

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OciLayout:
    found = OciLayout(tmp_path / "oci")
    monkeypatch.setattr(images, "oci_layout", lambda: found)
    monkeypatch.setattr(buildah, "forget_unused", lambda: None)
    return found


def build(layout: OciLayout, name: str, hours_ago: float | None) -> None:
    program = layout.path.parent / name
    program.write_text(name)
    layout.write_single_file_image(name, program, "65532:65532")
    if hours_ago is not None:
        layout.note_use(name)
        then = time.time() - hours_ago * 3600
        os.utime(layout.path / "used" / name, (then, then))


def test_only_images_that_nobody_used_lately_are_forgotten(layout: OciLayout) -> None:
    build(layout, "engine-today", 0)
    build(layout, "engine-beside", 1)
    build(layout, "engine-yesterday", 24)
    build(layout, "engine-unnoted", None)
    build(layout, "engine-sim-yesterday", 24)
    images._forget_older([TARGETS["engine"]])
    left = {name for name in ("today", "beside", "yesterday", "unnoted") if layout.find(f"engine-{name}")}
    assert left == {"today", "beside"}
    assert layout.find("engine-sim-yesterday") is not None
    assert layout.last_use("engine-yesterday") == 0
    assert layout.last_use("engine-beside") > 0
