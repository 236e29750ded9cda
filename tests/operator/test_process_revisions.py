"""Revisions: rollouts, canaries, upgrades of the operator, and templates that are refused.

The operator runs as a process on a real API server with controllers and no node, under the chart's
ServiceAccount, with the rights that the chart gives in one namespace and no others. Tests play the kubelet.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from harness.kubectl import wait_until

from operator_process import Operator
from operator_world import World
from tidemill_operator import names

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.cluster


def settle(world: World, start: Callable[[], Operator]) -> str:
    """Bring up a service of two replicas and return its revision."""
    world.apply()
    world.make_gateway()
    start()
    revision = world.revision()
    world.make_ready(world.pods(revision, 2))
    world.wait_for("Progressing", "False", "Settled")
    return revision


def test_an_upgraded_operator_restarts_nothing_until_it_is_asked_to(
    world: World, start: Callable[..., Operator]
) -> None:
    world.apply()
    world.make_gateway()
    first = start()
    old = world.revision()
    pods = world.pods(old, 2)
    world.make_ready(pods)
    world.wait_for("Progressing", "False", "Settled")
    assert world.condition("NewerTemplateAvailable") == ("", "")
    first.end(signal.SIGTERM)
    start("localhost/engine:newer")
    world.wait_for("NewerTemplateAvailable", "True", "OperatorChanged")
    assert world.deployments() == {old: 2}
    assert sorted(world.pods(old, 2)) == sorted(pods)
    world.kubectl("annotate", *world.scope, "infsvc/chat", f"{names.ANNOTATION_RESTARTED_AT}=now")
    wait_until("a new revision", lambda: world.revision() != old)
    (pod,) = world.pods(world.revision(), 1)
    containers = world.kubectl.get(*world.scope, "pod", pod)["spec"]["containers"]
    assert [container["image"] for container in containers] == ["localhost/engine:newer"]


def test_a_new_revision_replaces_the_old_one_as_it_becomes_ready(
    world: World, start: Callable[[], Operator]
) -> None:
    old = settle(world, start)
    world.apply({"engine": {"dtype": "float32"}})
    wait_until("a new revision", lambda: world.revision() != old)
    new = world.revision()
    first = world.pods(new, 1)
    assert world.deployments() == {old: 2, new: 1}
    assert world.condition("Ready") == ("True", "ReplicasReady")
    world.make_ready(first)
    world.make_ready(world.pods(new, 2))
    world.wait_for("Progressing", "False", "Settled")
    wait_until("the old revision to go", lambda: world.deployments() == {new: 2})
    revisions = {c["metadata"]["name"] for c in world.children() if c["kind"] == "ControllerRevision"}
    assert revisions == {f"chat-{new}", f"chat-{old}"}
    world.apply({"engine": {"dtype": "float32"}, "rollout": {"toRevision": old}})
    world.pods(old, 1)
    assert world.revision() == old


def test_a_canary_that_fails_is_stopped_while_the_current_revision_serves_on(
    world: World, start: Callable[[], Operator]
) -> None:
    old = settle(world, start)
    world.apply({"engine": {"dtype": "float32"}, "rollout": {"canary": {"trafficPercent": 10}}})
    world.wait_for("Progressing", "True", "CanaryRunning")
    new = world.revision()
    (pod,) = world.pods(new, 1)
    assert world.deployments() == {old: 2, new: 1}
    world.make_fail(pod)
    world.wait_for("Progressing", "False", "CanaryFailed")
    wait_until("the canary to go", lambda: world.deployments() == {old: 2, new: 0})
    assert world.service()["status"]["revision"] == {"current": old, "update": new, "failed": new}
    assert world.condition("Ready") == ("True", "ReplicasReady")
    assert any(event["reason"] == "CanaryFailed" for event in world.events())


def test_a_template_that_no_api_server_takes_is_told_and_leaves_the_former_revision(
    world: World, start: Callable[[], Operator]
) -> None:
    world.apply()
    start()
    before = world.revision()
    world.apply(
        {"template": {"spec": {"containers": [{"name": "engine", "livenessProbe": {"periodSeconds": -1}}]}}}
    )
    world.wait_for("Ready", "False", "InvalidTemplate")
    assert set(world.deployments()) == {before}
    world.apply({"template": {"spec": {"priorityClassName": "system-cluster-critical"}}})
    wait_until("the next revision", lambda: set(world.deployments()) - {before})
