"""Fixtures that need a Kubernetes, and the preparation of it before the first test runs.

`control_plane`: API server and controllers without a node. `cluster`: a node too, with our images.
`crds`: the control plane with our CRD. `release`: the cluster with our chart installed.
"""

from __future__ import annotations

import os
import re
import signal
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from harness import session as sessions
from harness.errors import HarnessError, UnavailableError
from harness.images import SLIM
from harness.kubectl import wait_until
from harness.session import RELEASE_NAMESPACE

from chart_release import CHART, image_values, make_namespace
from examples import register_profiles

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from types import FrameType

    from harness.oci import StoredImage
    from harness.session import TestCluster

register_profiles()

# Triton decides at import whether it compiles or interprets; its kernels are tested interpreted.
os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).resolve().parents[1]
HUB_NAMESPACE = "model-hub"
"""Where a test may put a stand-in of a model hub; nothing is there otherwise."""
_NODE_FIXTURES = {"cluster", "release", "real_engine", "own_clusters"}
_FIXTURES = {*_NODE_FIXTURES, "control_plane", "crds"}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The outcome of the preparation: images, or why there can be no cluster, or what went wrong."""

    images: tuple[StoredImage, ...] = ()
    unavailable: str | None = None
    broken: str | None = None


_PREPARED = pytest.StashKey[Prepared]()


def pytest_configure() -> None:
    """Let SIGTERM end the tests as Ctrl-C does, so that fixtures take down what they have started."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse a test that would bring up a cluster in the process that has the others."""
    if _FIXTURES & set(getattr(item, "fixturenames", ())) and not item.get_closest_marker("cluster"):
        raise pytest.UsageError(f"{item.nodeid} uses a cluster and is not marked with it")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Install and build for the tests that were selected, outside any test's time limit."""
    if session.config.option.collectonly or session.testsfailed:
        return
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())} & _FIXTURES
    if not wanted:
        return
    has_node = bool(wanted & _NODE_FIXTURES)
    images = [*SLIM, *(["engine"] if "real_engine" in wanted else [])] if has_node else []
    capture = session.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            built = sessions.prepare(images, has_node=has_node)
    except UnavailableError as error:
        session.config.stash[_PREPARED] = Prepared(unavailable=str(error))
    except HarnessError as error:
        session.config.stash[_PREPARED] = Prepared(broken=str(error))
    else:
        session.config.stash[_PREPARED] = Prepared(images=built)


@pytest.fixture(scope="session")
def prepared(request: pytest.FixtureRequest) -> Prepared:
    prepared = request.config.stash[_PREPARED]
    if prepared.unavailable is not None:
        sessions.refuse(prepared.unavailable)
    if prepared.broken is not None:
        pytest.fail(f"the test cluster could not be prepared: {prepared.broken}", pytrace=False)
    return prepared


@pytest.fixture(scope="session")
def control_plane(prepared: Prepared) -> Iterator[TestCluster]:
    """Offer an API server with controllers and no node."""
    existing = sessions.existing_kubeconfig()
    opened = sessions.existing_cluster(existing) if existing else sessions.own_cluster((), has_node=False)
    with opened as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster(prepared: Prepared) -> Iterator[TestCluster]:
    """Offer a cluster with a node that has our images and two GPUs nobody owns."""
    existing = sessions.existing_kubeconfig()
    images = prepared.images
    opened = sessions.existing_cluster(existing) if existing else sessions.own_cluster(images, has_node=True)
    with opened as running:
        yield running


@pytest.fixture(scope="session")
def own_clusters(prepared: Prepared) -> None:
    """Let a test bring up clusters of its own; not where an existing one was given."""
    if sessions.existing_kubeconfig() is not None:
        pytest.skip("an existing cluster was given: nothing is built here")


@pytest.fixture(scope="session")
def crds(control_plane: TestCluster) -> TestCluster:
    """Offer the control plane with our CRD established."""
    apply_crds(control_plane)
    return control_plane


def apply_crds(cluster: TestCluster) -> None:
    """Apply the CRD and wait until the API serves it."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", ROOT / "crds")
    wait = ("wait", "--for=condition=Established", "--timeout=120s", "-f", ROOT / "crds")
    # Right after it was made a definition has no conditions at all, which kubectl takes for an error.
    wait_until("the CRD", lambda: cluster.kubectl(*wait, check=False).returncode == 0)


@pytest.fixture(scope="session")
def real_engine(cluster: TestCluster) -> str:
    """Return the engine image with torch; asking for it is what gets it built."""
    return _image(cluster, "engine")


@pytest.fixture(scope="session")
def sim_engine(cluster: TestCluster) -> str:
    """Return the engine image that serves sim:// models only."""
    return _image(cluster, "engine-sim")


def _image(cluster: TestCluster, name: str) -> str:
    if name not in cluster.images:
        pytest.skip(f"the existing cluster was given no image for {name}")
    return cluster.images[name]


@pytest.fixture(scope="session")
def release(cluster: TestCluster) -> Iterator[TestCluster]:
    """Offer the cluster with our chart installed from the working tree."""
    values = image_values(_image(cluster, "operator"), _image(cluster, "engine"))
    make_namespace(cluster, RELEASE_NAMESPACE)
    values += ["--set-string", f"operator.modelEndpoints.hf=http://hub.{HUB_NAMESPACE}.svc:8080"]
    cluster.helm(
        "install", "tidemill", CHART, "--namespace", RELEASE_NAMESPACE, "--wait", "--timeout", "120s",
        *values,
    )  # fmt: skip
    yield cluster
    cluster.helm("uninstall", "tidemill", "--namespace", RELEASE_NAMESPACE, "--wait", check=False)


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """Make a namespace for one test on the cluster that it uses, and delete it afterwards."""
    is_on_node = bool(_NODE_FIXTURES & set(request.fixturenames))
    on: TestCluster = request.getfixturevalue("cluster" if is_on_node else "control_plane")
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[5:35].strip("-")
    name = f"{words}-{uuid.uuid4().hex[:4]}"
    make_namespace(on, name)
    yield name
    on.kubectl("delete", "namespace", name, "--wait=false")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the cluster looked like when a test on it failed."""
    report = yield
    running = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and running is not None:
        report.sections.append(("cluster", _describe(running)))
    return report


def _describe(cluster: TestCluster) -> str:
    namespace = ("--namespace", RELEASE_NAMESPACE)
    commands: tuple[tuple[str, ...], ...] = (
        ("get", "pods,deployments,infsvc", "-A", "-o", "wide"),
        ("get", "infsvc", "-A", "-o", "jsonpath={range .items[*]}{.metadata.name}{' '}{.status}{'\\n'}{end}"),
        ("get", "events", "-A", "--sort-by=.lastTimestamp"),
        ("logs", *namespace, "--tail=40", "--prefix", "-l", "app.kubernetes.io/component=operator"),
        ("logs", *namespace, "--tail=20", "--prefix", "-l", "app.kubernetes.io/component=gateway"),
        *_engine_logs(cluster),
    )
    parts = []
    for command in commands:
        result = cluster.kubectl(*command, check=False)
        text = (result.stdout + result.stderr).strip().splitlines()[-60:]
        parts.append(f"$ kubectl {' '.join(command)}\n" + "\n".join(text))
    for log in ("logs/ingress.log", "ingress/error.log", "logs/kube-controller-manager.log"):
        path = cluster.kubeconfig.parent / log
        if cluster.containerd_socket is not None and path.exists():
            parts.append(f"$ tail {log}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-12:]))
    return "\n\n".join(parts)


def _engine_logs(cluster: TestCluster) -> list[tuple[str, ...]]:
    listed = cluster.kubectl.items("pods", "-A", "-l", "app.kubernetes.io/component=engine")
    names = [(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in listed]
    return [("logs", "--tail=20", "--namespace", namespace, name) for namespace, name in names[:4]]
