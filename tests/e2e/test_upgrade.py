"""An upgrade of the chart with other defaults restarts no engine; the CRD is upgraded and never deleted."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from harness.kubectl import wait_until
from harness.session import RELEASE_NAMESPACE

from chart_release import CHART, image_values
from e2e_support import Namespace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.cluster
CRD = "crd/inferenceservices.serving.tidemill.dev"
OLD_HELP = "One language model behind an OpenAI-compatible API"
NEW_HELP = "One language model, as the next version describes it"


@pytest.fixture
def next_chart(tmp_path: Path) -> Path:
    """Offer the chart as a next version could be: other defaults, a CRD that says something new."""
    chart = tmp_path / "tidemill"
    shutil.copytree(CHART, chart, symlinks=False)
    values = chart / "values.yaml"
    text = values.read_text()
    for before, after in (("idleTimeoutSeconds: 600", "idleTimeoutSeconds: 601"), ("cpu: 50m", "cpu: 60m")):
        assert before in text
        text = text.replace(before, after)
    values.write_text(text)
    crd = chart / "files" / "inferenceservices.yaml"
    assert OLD_HELP in crd.read_text()
    crd.write_text(crd.read_text().replace(OLD_HELP, NEW_HELP))
    return chart


@pytest.fixture
def upgrade(space: Namespace, next_chart: Path) -> Iterator[None]:
    """Upgrade the release to the next version with another default engine image, and go back afterwards."""
    helm, operator = space.cluster.helm, space.cluster.images["operator"]
    common = ("--namespace", RELEASE_NAMESPACE, "--wait", "--timeout", "120s")
    newer = image_values(operator, "localhost/tidemill-engine:newer")
    helm("upgrade", "tidemill", next_chart, *common, *newer)
    yield
    helm("upgrade", "tidemill", CHART, *common, *image_values(operator, space.cluster.images["engine"]))


def identities(space: Namespace) -> set[tuple[str, int]]:
    """Give UID and number of restarts of every engine pod."""
    return {
        (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in space.pods("own")
    }


@pytest.fixture
def serving(space: Namespace, sim_engine: str) -> set[tuple[str, int]]:
    """Offer the engine pods of a service, made by the version before."""
    space.apply_sim("own", sim_engine)
    space.wait_ready("own")
    return identities(space)


def test_an_upgrade_with_other_defaults_restarts_no_engine_and_upgrades_the_definition(
    space: Namespace, serving: set[tuple[str, int]], upgrade: None
) -> None:
    (version,) = space.cluster.kubectl.get(CRD)["spec"]["versions"]
    assert NEW_HELP in version["schema"]["openAPIV3Schema"]["description"]
    # The new operator has looked once it has acted on a change.
    space.cluster.kubectl("scale", "-n", space.name, "infsvc/own", "--replicas=2")
    wait_until("the second replica", lambda: len(space.pods("own")) == 2)
    space.wait_ready("own")
    assert serving < identities(space)


def test_helm_test_finds_a_gateway_that_answers(space: Namespace) -> None:
    space.cluster.helm("test", "tidemill", "--namespace", RELEASE_NAMESPACE, "--timeout", "60s")
