"""The operator's own beginning and end: restarts, kills, leadership, and what it must wait for.

The operator runs as a process on a real API server with controllers and no node, under the chart's
ServiceAccount, with the rights that the chart gives in one namespace and no others. Tests play the kubelet.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from harness.kubectl import wait_until

from chart_release import ROOT
from operator_process import Operator
from operator_world import World, wait_for_runs
from tidemill_operator import names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.session import TestCluster

pytestmark = pytest.mark.cluster


def test_a_restarted_operator_finds_nothing_to_write(world: World, start: Callable[[], Operator]) -> None:
    world.apply({"routing": {"ingress": {"host": "chat.example.com"}}})
    world.make_gateway()
    first = start()
    world.make_ready(world.pods(world.revision(), 2))
    world.wait_for("Ready", "True", "ReplicasReady")
    world.wait_for("Progressing", "False", "Settled")
    assert first.end(signal.SIGTERM) == 0
    before = world.written()
    assert {key.partition("/")[0] for key, entries in before.items() if entries} >= {
        "Deployment", "Service", "Secret", "PodDisruptionBudget", "Ingress", names.KIND,
    }  # fmt: skip
    second = start()
    wait_for_runs(second)
    assert world.written() == before
    assert second.metric("tidemill_operator_status_writes_total") == 0


def test_an_operator_killed_in_mid_reconcile_is_finished_by_the_next(
    world: World, start: Callable[[], Operator]
) -> None:
    # No Service may be made here: a run gets as far as the Deployment and no further.
    quota = {"metadata": {"name": "q", "namespace": world.namespace}, "spec": {"hard": {"services": "0"}}}
    world.kubectl.apply({"apiVersion": "v1", "kind": "ResourceQuota", **quota})
    world.apply({"routing": {"ingress": {"host": "chat.example.com"}}})
    first = start()
    world.wait_for("Ready", "False", "WriteRefused")
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    assert "Service" not in {child["kind"] for child in world.children()}
    world.kubectl("delete", *world.scope, "resourcequota", "q")
    start()
    # The dead one's lease has to run out first: 15 s.
    world.wait_for("Ready", "False", "ReplicasStarting")
    assert {"Service", "PodDisruptionBudget", "Ingress"} <= {child["kind"] for child in world.children()}


def test_of_two_operators_one_acts_and_the_other_takes_over(
    world: World, start: Callable[[], Operator]
) -> None:
    first = start()
    wait_until("a leader", lambda: first.metric("tidemill_operator_is_leader"))
    second = start()
    wait_until("the standby to be ready", lambda: second.get("/health/ready"))
    world.apply()
    wait_for_runs(first)
    assert second.metric("tidemill_operator_is_leader") == 0
    assert second.metric("tidemill_operator_queue_keys") == 0
    assert first.end(signal.SIGTERM) == 0
    wait_until("a successor", lambda: second.metric("tidemill_operator_is_leader"))
    world.kubectl("scale", *world.scope, "infsvc/chat", "--replicas=3")
    world.pods(world.revision(), 3)


def test_an_operator_whose_lease_is_taken_ends_at_once(world: World, start: Callable[[], Operator]) -> None:
    operator = start()
    wait_until("a leader", lambda: operator.metric("tidemill_operator_is_leader"))
    patch = json.dumps({"spec": {"holderIdentity": "someone-else"}})
    world.kubectl("patch", *world.scope, "lease", "tidemill-operator", "--type=merge", "-p", patch)
    assert operator.process.wait(timeout=120) == 3
    assert "leadership is lost" in operator.log.read_text()


def test_an_operator_that_starts_before_the_definition_waits_for_it(
    crds: TestCluster, world: World, start: Callable[[], Operator]
) -> None:
    crds.kubectl("delete", f"crd/{names.CRD_NAME}")
    operator = start()
    try:
        wait_until("the wait", lambda: "does not know" in operator.log.read_text())
    finally:
        crds.kubectl("apply", "--server-side", "--force-conflicts", "-f", ROOT / "crds")
        crds.kubectl("wait", "--for=condition=Established", "--timeout=120s", "-f", ROOT / "crds")
    world.apply()
    world.wait_for("Ready", "False", "ReplicasStarting")


def test_an_operator_without_an_api_server_ends_with_a_message(tmp_path: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "missing")}
    command = [sys.executable, "-m", "tidemill_operator", "run", "--engine-image", "x"]
    ended = subprocess.run(
        [*command, "--operator-namespace", "n", "--http-port", "0"],
        env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "tidemill-operator: " in ended.stderr
    assert "Traceback" not in ended.stderr
