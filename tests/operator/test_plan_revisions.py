"""What is planned for revisions: rollouts, canaries, the way back, replicas changed by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from operator_builders import (
    IMAGE,
    NOW,
    make_deployment,
    make_pod,
    make_service,
    owned_child,
)
from plan_support import REVISION, TEMPLATE, applied, condition, plan_for, replicas, settled
from tidemill_operator import names
from tidemill_operator.engine_load import EngineLoad
from tidemill_operator.observed import DeploymentView, Observed
from tidemill_operator.plan import make_plan
from tidemill_operator.spec import revision_of


def test_a_deployment_scaled_by_hand_is_put_back_with_an_event() -> None:
    by_hand = make_deployment(REVISION, 5, written_replicas=2)
    plan = plan_for(settled(deployments=(by_hand,)))
    assert replicas(plan) == {REVISION: 2}
    (event,) = [e for e in plan.events if e.reason == "ReplicasPutBack"]
    assert event.type == "Warning"
    assert "kubectl scale infsvc/chat" in event.message


def test_a_change_of_replicas_is_no_hand_scaling() -> None:
    plan = plan_for(settled(), {"replicas": 4})
    assert replicas(plan) == {REVISION: 4}
    assert "ReplicasPutBack" not in {e.reason for e in plan.events}


def test_a_new_revision_rolls_while_the_old_one_serves() -> None:
    plan = plan_for(settled(), {"engine": {"dtype": "float32"}})
    new = plan.status["revision"]["update"]
    assert replicas(plan) == {REVISION: 2, new: 1}
    assert plan.status["revision"]["current"] == REVISION
    assert f"ControllerRevision chat-{new}" in applied(plan)
    assert condition(plan, "Ready") == ("True", "ReplicasReady")
    assert condition(plan, "Progressing") == ("True", "RollingOut")


def test_old_revisions_keep_the_template_that_was_frozen_for_them() -> None:
    frozen = {**TEMPLATE, "metadata": {"labels": {"made": "long ago"}}}
    plan = plan_for(settled(templates={REVISION: frozen}), {"engine": {"dtype": "float32"}})
    old = next(m for m in plan.applies if m["metadata"]["name"] == f"chat-{REVISION}")
    assert old["spec"]["template"] == frozen


def test_an_upgraded_operator_restarts_nothing_and_says_that_it_could() -> None:
    plan = make_plan(make_service(), settled(), "tidemill-engine:newer", NOW)
    (deployment,) = [m for m in plan.applies if m["kind"] == "Deployment"]
    assert deployment["spec"]["template"] == TEMPLATE
    assert condition(plan, "NewerTemplateAvailable") == ("True", "OperatorChanged")
    assert condition(plan, "Progressing") == ("False", "Settled")


def test_the_restart_annotation_takes_the_newer_template() -> None:
    service = make_service(annotations={names.ANNOTATION_RESTARTED_AT: NOW})
    plan = make_plan(service, settled(), "tidemill-engine:newer", NOW)
    new = next(m for m in plan.applies if m["kind"] == "ControllerRevision")
    assert new["data"]["template"]["spec"]["containers"][0]["image"] == "tidemill-engine:newer"
    assert new["revision"] == 2


def test_an_emptied_revision_is_deleted_with_its_record() -> None:
    old = make_deployment("0ld0ld00", 0, existing_replicas=0)
    world = settled()
    children = (*world.children, owned_child("ControllerRevision", "chat-0ld0ld00"))
    templates = {REVISION: TEMPLATE, "0ld0ld00": TEMPLATE}
    plan = plan_for(settled(deployments=(*world.deployments, old), children=children, templates=templates))
    assert {(d.kind, d.name, d.uid) for d in plan.deletes} == {
        ("Deployment", "chat-0ld0ld00", "uid-0ld0ld00"),
        ("ControllerRevision", "chat-0ld0ld00", "uid-ControllerRevision-chat-0ld0ld00"),
    }


@pytest.mark.parametrize(
    ("old", "pods"),
    [
        (make_deployment("0ld0ld00", 0, existing_replicas=1), ()),
        (
            make_deployment("0ld0ld00", 0, existing_replicas=0),
            (make_pod("0ld0ld00", is_ready=True, is_terminating=True),),
        ),
    ],
)
def test_a_revision_stays_while_its_pods_leave(old: DeploymentView, pods: tuple[Any, ...]) -> None:
    world = settled()
    plan = plan_for(settled(deployments=(*world.deployments, old), pods=(*world.pods, *pods)))
    assert plan.deletes == ()


@pytest.mark.parametrize(
    ("existing", "said"),
    [
        pytest.param(1, ("True", "RollingOut"), id="its end is not counted yet"),
        pytest.param(0, ("False", "Settled"), id="it goes in this run"),
    ],
)
def test_a_rollout_has_ended_when_nothing_of_the_old_revision_is_left(
    existing: int, said: tuple[str, str]
) -> None:
    old = make_deployment("0ld0ld00", 0, existing_replicas=existing)
    world = settled()
    plan = plan_for(replace(world, deployments=(*world.deployments, old)))
    assert condition(plan, "Progressing") == said
    assert [gone.name for gone in plan.deletes if gone.kind == "Deployment"] == [old.name] * (existing == 0)


def test_a_revision_to_go_back_to_that_is_not_kept_touches_nothing_and_names_those_that_are() -> None:
    world = settled(templates={REVISION: TEMPLATE, "0ld0ld00": TEMPLATE})
    world = replace(world, revision_numbers={REVISION: 2, "0ld0ld00": 1})
    plan = plan_for(world, {"rollout": {"toRevision": "deadbeef"}})
    assert (plan.applies, plan.deletes) == ((), ())
    assert condition(plan, "Ready") == ("False", "RevisionNotFound")
    assert f"newest first: {REVISION}, 0ld0ld00" in plan.status["conditions"][0]["message"]


def canary_world(**changes: Any) -> tuple[Observed, dict[str, Any]]:
    """Build a settled service whose spec has just got a new revision as a canary."""
    spec: dict[str, Any] = {"engine": {"dtype": "float32"}, "rollout": {"canary": {"trafficPercent": 30}}}
    new = revision_of(make_service(spec))
    world = settled()
    pods = (*world.pods, make_pod(new, 7, is_ready=True))
    deployments = (*world.deployments, make_deployment(new, 1))
    return replace(world, pods=pods, deployments=deployments, **changes), spec


def test_a_canary_stands_beside_the_current_revision_at_full_size() -> None:
    world, spec = canary_world(loads={})
    plan = plan_for(world, spec)
    new = plan.status["revision"]["update"]
    assert replicas(plan) == {REVISION: 2, new: 1}
    assert condition(plan, "Progressing") == ("True", "CanaryRunning")
    assert "failed" not in plan.status["revision"]
    assert plan.again_seconds is not None


def test_a_canarys_engines_are_asked_how_many_requests_failed() -> None:
    world, spec = canary_world()
    plan = plan_for(world, spec)
    assert {pod.name for pod in plan.asks} == {pod.name for pod in world.pods}


def test_a_canary_that_fails_requests_is_stopped_for_good_and_told_once() -> None:
    world, spec = canary_world(loads={})
    new_pod = world.pods[-1]
    world = replace(world, loads={new_pod.uid: EngineLoad(num_answered=50, num_failed=20)})
    plan = plan_for(world, spec)
    assert plan.status["revision"]["failed"] == new_pod.revision
    assert condition(plan, "Stalled") == ("True", "CanaryFailed")
    assert plan.status["model"]["lastFailure"]["reason"] == "CanaryErrors"
    assert "CanaryFailed" in {event.reason for event in plan.events}
    again = make_plan(
        {**make_service(spec), "status": dict(plan.status)}, replace(world, loads=None), IMAGE, NOW
    )
    assert again.status["revision"] == plan.status["revision"]
    assert "CanaryFailed" not in {event.reason for event in again.events}
    assert condition(again, "Ready")[0] == "True"


def test_a_failed_canary_is_rolled_out_all_the_same_when_the_field_is_removed() -> None:
    world, spec = canary_world(loads={})
    status = {"revision": {"failed": world.pods[-1].revision}}
    plan = make_plan({**make_service({**spec, "rollout": {}}), "status": status}, world, IMAGE, NOW)
    assert "failed" not in plan.status["revision"]
    assert condition(plan, "Progressing") == ("True", "RollingOut")
