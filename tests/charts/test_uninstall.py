"""Releases come and go; the CRD and the services stay unless asked otherwise. A node is not needed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from chart_release import CHART, ROOT
from tidemill_operator import names

if TYPE_CHECKING:
    from harness.session import TestCluster

pytestmark = pytest.mark.cluster
CRD = f"crd/{names.CRD_NAME}"
FLAGS = ("--take-ownership", "--set", "operator.replicas=0", "--set", "gateway.replicas=0")


def apply_service(cluster: TestCluster, namespace: str) -> str:
    service = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "kept", "namespace": namespace},
        "spec": {"model": {"uri": "sim://demo"}, "replicas": 0},
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(service))
    return str(cluster.kubectl.get("infsvc", "-n", namespace, "kept")["metadata"]["uid"])


def test_an_uninstall_keeps_the_definition_and_the_services_unless_asked_otherwise(
    crds: TestCluster, namespace: str
) -> None:
    here = ("--namespace", namespace)
    crds.helm("install", "mine", CHART, *here, *FLAGS)
    uid = apply_service(crds, namespace)
    crds.helm("upgrade", "mine", CHART, *here, *FLAGS)
    crds.helm("uninstall", "mine", *here, "--wait", "--timeout", "60s")
    assert crds.kubectl.get("infsvc", "-n", namespace, "kept")["metadata"]["uid"] == uid
    assert crds.kubectl.get(CRD)["spec"]["names"]["kind"] == names.KIND

    crds.helm("install", "mine", CHART, *here, *FLAGS, "--set", "crds.keep=false")
    try:
        crds.helm("uninstall", "mine", *here, "--wait", "--timeout", "60s")
        assert crds.kubectl.find(CRD) is None
    finally:
        crds.kubectl("apply", "--server-side", "--force-conflicts", "-f", ROOT / "crds")
        crds.kubectl("wait", "--for=condition=Established", "--timeout=120s", "-f", ROOT / "crds")
    assert crds.kubectl.items("infsvc", "-n", namespace) == []
