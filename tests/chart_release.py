"""Our chart as a release on a test cluster: its values for images that the cluster has, and its namespace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.session import TestCluster

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "tidemill"
# Every pod of ours must be admitted where nothing but the strictest standard is.
RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}


def image_values(operator: str, engine: str) -> list[str]:
    """Write the arguments by which helm takes these images."""
    values = []
    for part, image in (("operator", operator), ("engine", engine)):
        repository, _, tag = image.rpartition(":")
        values += ["--set", f"image.{part}.repository={repository}"]
        values += ["--set-string", f"image.{part}.tag={tag}"]
    return values


def make_namespace(cluster: TestCluster, name: str) -> None:
    """Make a namespace that admits restricted pods alone; one that exists is labelled."""
    metadata: dict[str, Any] = {"name": name, "labels": RESTRICTED}
    cluster.kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}))
