"""A namespace on the cluster with our chart, per test or per module; a hub of models in the cluster."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chart_release import make_namespace
from conftest import HUB_NAMESPACE
from e2e_support import Namespace
from model_in_cluster import SERVE_HUB, config_map, hub_pod, publish_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.session import TestCluster


@pytest.fixture
def space(release: TestCluster, namespace: str) -> Namespace:
    """Offer an empty namespace."""
    return Namespace(cluster=release, name=namespace)


@pytest.fixture(scope="module")
def module_space(release: TestCluster) -> Iterator[Namespace]:
    """Offer a namespace that the tests of one module share."""
    name = f"shared-{uuid.uuid4().hex[:6]}"
    make_namespace(release, name)
    yield Namespace(cluster=release, name=name)
    release.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def hub_files(release: TestCluster, tmp_path: Path) -> Iterator[dict[str, bytes]]:
    """Offer a hub in the cluster, where the operator's chart says that it is."""
    files = publish_model(tmp_path)
    server = Path(__file__).parents[1] / "model_servers.py"
    code = {"model_servers.py": server.read_bytes(), "serve_hub.py": SERVE_HUB.encode()}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "hub"},
        "spec": {"selector": {"app": "hub"}, "ports": [{"port": 8080}]},
    }
    release.kubectl("create", "namespace", HUB_NAMESPACE)
    for manifest in (
        config_map("files", files),
        config_map("stand-in", code),
        service,
        hub_pod(release.images["operator"]),
    ):
        release.kubectl("create", "-n", HUB_NAMESPACE, "-f", "-", stdin=json.dumps(manifest))
    release.kubectl("wait", "-n", HUB_NAMESPACE, "--for=condition=Ready", "pod/hub", "--timeout=120s")
    yield files
    release.kubectl("delete", "namespace", HUB_NAMESPACE, "--wait=false")
