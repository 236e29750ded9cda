"""Images on disk in the OCI layout: find, write, prune, and stream what a runtime lacks.

Knows the layout's files. Refuses to know who builds images and who runs them.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterable

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
_NAME = "org.opencontainers.image.ref.name"
_CONTAINERD_NAME = "io.containerd.image.name"
_USED = "used"  # a folder with an empty file for each image, whose time is that of its last use
_LAYOUT_FILE = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """An image of the layout and the reference under which a cluster knows it."""

    reference: str
    digest: str
    layout: Path


@dataclass(frozen=True)
class OciLayout:
    """A folder in the OCI image layout."""

    path: Path

    def descriptors(self) -> list[dict[str, Any]]:
        """Return the index' entries."""
        index = self.path / "index.json"
        if not index.exists():
            return []
        entries: list[dict[str, Any]] = json.loads(index.read_text()).get("manifests", [])
        return entries

    def find(self, name: str) -> str | None:
        """Return the digest of the image with this name, or None."""
        for entry in self.descriptors():
            if entry.get("annotations", {}).get(_NAME) == name:
                return str(entry["digest"])
        return None

    def note_use(self, name: str) -> None:
        """Remember that the image with this name is used now."""
        (self.path / _USED).mkdir(parents=True, exist_ok=True)
        (self.path / _USED / name).touch()

    def last_use(self, name: str) -> float:
        """Return when the image with this name was last used, in seconds since the epoch; 0 for never."""
        note = self.path / _USED / name
        return note.stat().st_mtime if note.exists() else 0.0

    def blob(self, digest: str) -> Path:
        """Return the path of a blob."""
        algorithm, _, value = digest.partition(":")
        return self.path / "blobs" / algorithm / value

    def blobs_of(self, digest: str) -> list[str]:
        """Return the digests of an image: its layers, its configuration, itself last."""
        path = self.blob(digest)
        if not path.exists():
            raise HarnessError(f"the image {digest} is not in {self.path}")
        manifest = json.loads(path.read_text())
        return [*(layer["digest"] for layer in manifest["layers"]), manifest["config"]["digest"], digest]

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget images with other names, and remove the blobs that nothing names any more."""
        wanted = set(names)
        entries = [e for e in self.descriptors() if e.get("annotations", {}).get(_NAME) in wanted]
        self._write_index(entries)
        needed = {blob for entry in entries for blob in self.blobs_of(entry["digest"])}
        for path in (self.path / "blobs" / "sha256").glob("*"):
            if f"sha256:{path.name}" not in needed:
                path.unlink()
        for note in (self.path / _USED).glob("*"):
            if note.name not in wanted:
                note.unlink()

    def write_single_file_image(self, name: str, program: Path, user: str) -> str:
        """Write an image whose only file is a static program, and return its digest."""
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            info = tarfile.TarInfo(program.name)
            info.mode, info.size = 0o755, program.stat().st_size
            with program.open("rb") as file:
                tar.addfile(info, file)
        layer_descriptor = self._write_blob(layer.getvalue(), _LAYER_TYPE)
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": [f"/{program.name}"], "User": user},
            "rootfs": {"type": "layers", "diff_ids": [layer_descriptor["digest"]]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": self._write_blob(json.dumps(config).encode(), _CONFIG_TYPE),
            "layers": [layer_descriptor],
        }
        descriptor = self._write_blob(json.dumps(manifest).encode(), MANIFEST_TYPE)
        others = [e for e in self.descriptors() if e.get("annotations", {}).get(_NAME) != name]
        self._write_index([*others, {**descriptor, "annotations": {_NAME: name}}])
        return str(descriptor["digest"])

    def _write_blob(self, data: bytes, media_type: str) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        path = self.blob(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def _write_index(self, entries: list[dict[str, Any]]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "oci-layout").write_bytes(_LAYOUT_FILE)
        index = {"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": entries}
        partial = self.path / "index.json.partial"
        partial.write_text(json.dumps(index))
        partial.rename(self.path / "index.json")


def write_archive(image: StoredImage, known: set[str], out: IO[bytes]) -> None:
    """Stream an OCI archive of the image that leaves out the blobs a runtime already has."""
    layout = OciLayout(image.layout)
    descriptor = {
        "mediaType": MANIFEST_TYPE,
        "digest": image.digest,
        "size": layout.blob(image.digest).stat().st_size,
        "annotations": {_CONTAINERD_NAME: image.reference},
    }
    index = {"schemaVersion": 2, "mediaType": _INDEX_TYPE, "manifests": [descriptor]}
    with tarfile.open(fileobj=out, mode="w|") as tar:
        for name, data in (("oci-layout", _LAYOUT_FILE), ("index.json", json.dumps(index).encode())):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for digest in layout.blobs_of(image.digest):
            if digest in known:
                continue
            path = layout.blob(digest)
            info = tarfile.TarInfo(f"blobs/{digest.replace(':', '/')}")
            info.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(info, file)
