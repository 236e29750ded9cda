"""The operator as a process among others: killed in the middle, one of two, and cleaning up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from harness.kubectl import wait_until
from harness.session import RELEASE_NAMESPACE

from e2e_support import Namespace

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster
DEPLOYMENT = "deployment/tidemill-operator"
SELECTOR = "app.kubernetes.io/component=operator"
LEASE = "tidemill-operator"


def operator_pods(space: Namespace) -> list[str]:
    pods = space.cluster.kubectl.items("pods", "-n", RELEASE_NAMESPACE, "-l", SELECTOR)
    return [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def kill(space: Namespace, pod: str) -> None:
    if space.cluster.containerd_socket is None:
        pytest.skip("an existing cluster does not let tests kill a container's process")
    space.cluster.kill_container(RELEASE_NAMESPACE, pod)


def log_of(space: Namespace, pod: str) -> str:
    return space.cluster.kubectl("logs", "-n", RELEASE_NAMESPACE, pod).stdout


def holder(space: Namespace) -> str:
    lease = space.cluster.kubectl.find("lease", "-n", RELEASE_NAMESPACE, LEASE)
    return str(lease["spec"].get("holderIdentity", "")) if lease else ""


def leader(space: Namespace) -> str:
    """Return the pod that holds the lease, once it is one that lives."""

    def living() -> str | None:
        return next((pod for pod in operator_pods(space) if holder(space).startswith(pod)), None)

    return wait_until("a living holder of the lease", living)


def test_an_operator_killed_in_mid_reconcile_is_finished_by_the_next(
    space: Namespace, sim_engine: str
) -> None:
    # No Service may be made here: a reconcile gets as far as the Deployment and stops.
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "no-services"},
        "spec": {"hard": {"services": "0"}},
    }
    space.cluster.kubectl("apply", "-n", space.name, "-f", "-", stdin=json.dumps(quota))
    space.apply_sim("half", sim_engine)
    wait_until("the Deployment", lambda: [x for x in space.owned() if x.startswith("deployment")])
    assert not [x for x in space.owned() if x.startswith("service/")]
    before = leader(space)
    identity = holder(space)
    kill(space, before)
    space.cluster.kubectl("delete", "-n", space.name, "resourcequota/no-services")
    space.wait_ready("half")
    assert [x for x in space.owned() if x == "service/half"]
    assert holder(space) not in {"", identity}


@pytest.fixture
def two_operators(space: Namespace) -> Iterator[Namespace]:
    """Offer a namespace while two operators run."""
    namespace = ("-n", RELEASE_NAMESPACE)
    space.cluster.kubectl("scale", *namespace, DEPLOYMENT, "--replicas=2")
    space.cluster.kubectl("rollout", "status", *namespace, DEPLOYMENT, "--timeout=120s")
    yield space
    space.cluster.kubectl("scale", *namespace, DEPLOYMENT, "--replicas=1")
    space.cluster.kubectl("rollout", "status", *namespace, DEPLOYMENT, "--timeout=120s")


def test_of_two_operators_one_acts_and_the_other_takes_over(
    two_operators: Namespace, sim_engine: str
) -> None:
    space = two_operators
    acting = leader(space)
    (standby,) = set(operator_pods(space)) - {acting}
    space.apply_sim("one", sim_engine)
    space.wait_ready("one")
    applied = f"of {space.name}/one"
    assert applied in log_of(space, acting)
    assert applied not in log_of(space, standby)

    before = holder(space)
    kill(space, acting)
    wait_until("another holder", lambda: holder(space) not in {"", before})
    space.cluster.kubectl("scale", "-n", space.name, "infsvc/one", "--replicas=2")
    wait_until("the second replica", lambda: len(space.pods("one")) == 2)


def test_deleting_a_service_removes_all_its_children(space: Namespace, sim_engine: str) -> None:
    space.apply_sim("gone", sim_engine)
    space.wait_ready("gone")
    assert {"service/gone", "secret/gone-admin-token"} <= set(space.owned())
    space.cluster.kubectl("delete", "-n", space.name, "infsvc/gone")
    wait_until("an empty namespace", lambda: not space.owned())


def test_a_child_removed_by_hand_comes_back(space: Namespace, sim_engine: str) -> None:
    space.apply_sim("heal", sim_engine)
    space.wait_ready("heal")
    uid = space.cluster.kubectl.get("service", "-n", space.name, "heal")["metadata"]["uid"]
    space.cluster.kubectl("delete", "-n", space.name, "service/heal")

    def made_again() -> bool:
        found = space.cluster.kubectl.find("service", "-n", space.name, "heal")
        return found is not None and found["metadata"]["uid"] != uid

    wait_until("the Service", made_again)
