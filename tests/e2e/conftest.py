"""A namespace on the cluster with our chart, per test or per module."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from chart_release import make_namespace
from e2e_support import Namespace

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
