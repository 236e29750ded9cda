"""The cluster that a test session uses: one of our own, or an existing one given by a kubeconfig.

Environment: TIDEMILL_TEST_KUBECONFIG or KUBECONFIG names an existing cluster, for which nothing is built;
TIDEMILL_TEST_OPERATOR_IMAGE, TIDEMILL_TEST_ENGINE_IMAGE and TIDEMILL_TEST_ENGINE_SIM_IMAGE then say which
images it can pull, and TIDEMILL_TEST_INGRESS_URL where its ingress controller (class nginx) answers.
TIDEMILL_REQUIRE_CLUSTER=1 turns the skip of a machine without a cluster into a failure.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from harness import cluster as clusters
from harness import containerd, imagestore
from harness.cache import cache_root
from harness.errors import HarnessError, UnavailableError
from harness.images import TARGETS, ensure_images
from harness.kubectl import Helm, Kubectl
from harness.layout import Layout
from harness.prerequisites import ensure_kubectl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from harness.oci import StoredImage

RELEASE_NAMESPACE = "tidemill-system"
_TEST_INDEXES = range(10, 30)
_IMAGE_VARIABLES = {name: f"TIDEMILL_TEST_{name.upper().replace('-', '_')}_IMAGE" for name in TARGETS}


@dataclass(frozen=True, kw_only=True)
class TestCluster:
    """What a test may use of the cluster it runs on."""

    __test__ = False

    kubeconfig: Path
    kubectl: Kubectl
    helm: Helm
    ingress_url: str | None = None
    images: Mapping[str, str] = field(default_factory=dict)
    containerd_socket: Path | None = None

    def kill_container(self, namespace: str, pod: str) -> None:
        """End a pod's first container with SIGKILL, which its process 1 is immune to from inside."""
        if self.containerd_socket is None:
            raise UnavailableError("an existing cluster does not let tests kill a container's process")
        path = "jsonpath={.status.containerStatuses[0].containerID}"
        container = self.kubectl("get", "pod", "-n", namespace, pod, "-o", path).stdout
        identifier = container.removeprefix("containerd://")
        containerd.ctr(self.containerd_socket, "tasks", "kill", "--signal", "SIGKILL", identifier)


def existing_kubeconfig() -> Path | None:
    """Return the kubeconfig of a cluster that the environment gives, or None."""
    given = os.environ.get("TIDEMILL_TEST_KUBECONFIG") or os.environ.get("KUBECONFIG")
    if not given:
        return None
    path = Path(given)
    if not path.is_file():
        raise HarnessError(f"KUBECONFIG names {given}, which is no file")
    return path


def prepare(images: Iterable[str], *, has_node: bool) -> tuple[StoredImage, ...]:
    """Install and build all that takes long, before any test's clock runs."""
    if existing_kubeconfig() is not None:
        return ()
    binaries = clusters.prepare(has_node=has_node)
    remove_abandoned()
    if not has_node:
        return ()
    built = ensure_images(images)
    imagestore.ensure_unpacked(binaries, built)
    return built


@contextmanager
def existing_cluster(kubeconfig: Path) -> Iterator[TestCluster]:
    """Offer a cluster that somebody else runs."""
    helm = shutil.which("helm")
    if helm is None:
        raise UnavailableError("tests on an existing cluster need helm on PATH")
    kubectl = Kubectl(program=shutil.which("kubectl") or ensure_kubectl(), kubeconfig=kubeconfig)
    images = {name: os.environ[v] for name, v in _IMAGE_VARIABLES.items() if os.environ.get(v)}
    with tempfile.TemporaryDirectory() as home:
        yield TestCluster(
            kubeconfig=kubeconfig,
            kubectl=kubectl,
            helm=Helm(program=helm, kubeconfig=kubeconfig, home=Path(home)),
            ingress_url=os.environ.get("TIDEMILL_TEST_INGRESS_URL"),
            images=images,
        )


@contextmanager
def own_cluster(images: tuple[StoredImage, ...], *, has_node: bool) -> Iterator[TestCluster]:
    """Bring up a cluster on a free index; it goes afterwards, at the latest when this process ends."""
    with _free_index() as index:
        clusters.down(index)  # one that a killed session left running
        cluster = clusters.up(index, has_node=has_node, images=images, lives_with=_session_lock(index))
        try:
            yield TestCluster(
                kubeconfig=cluster.kubeconfig,
                kubectl=cluster.kubectl,
                helm=cluster.helm,
                ingress_url=cluster.ingress_url if has_node else None,
                images={name: target.reference for name, target in TARGETS.items()},
                containerd_socket=cluster.layout.containerd_socket if has_node else None,
            )
        finally:
            clusters.down(index)


@contextmanager
def _free_index() -> Iterator[int]:
    """Hold an index that no other test session uses; one whose session crashed is free again."""
    for index in _TEST_INDEXES:
        with _try_session_lock(index) as is_free:
            if is_free:
                yield index
                return
    raise HarnessError(f"all test clusters {_TEST_INDEXES[0]} to {_TEST_INDEXES[-1]} are in use")


def remove_abandoned() -> None:
    """Take down the clusters of test sessions that were killed."""
    for index in _TEST_INDEXES:
        if Layout.of(index).state.exists():
            with _try_session_lock(index) as is_free:
                if is_free:
                    clusters.down(index)


def _session_lock(index: int) -> Path:
    """Return the file that the session which uses an index keeps locked."""
    return cache_root() / "locks" / f"session-{index}.lock"


@contextmanager
def _try_session_lock(index: int) -> Iterator[bool]:
    """Hold an index' lock if nobody has it; it ends with the process that took it."""
    path = _session_lock(index)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def refuse(reason: str, lacking: str = "test cluster") -> NoReturn:
    """Skip a test that has no cluster (or whatever else it lacks), or fail it where a cluster is required."""
    if os.environ.get("TIDEMILL_REQUIRE_CLUSTER") == "1":
        pytest.fail(f"TIDEMILL_REQUIRE_CLUSTER=1, but: {reason}", pytrace=False)
    pytest.skip(f"no {lacking} here: {reason}")
