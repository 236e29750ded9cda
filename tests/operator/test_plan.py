"""What is planned in which world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from operator_builders import (
    IMAGE,
    NOW,
    make_context,
    make_deployment,
    make_observed,
    make_pod,
    make_service,
    make_termination,
    owned_child,
    ready_pods,
)
from tidemill_operator import manifests, names
from tidemill_operator.engine_load import EngineLoad
from tidemill_operator.observed import ChildView, DeploymentView, LostClaim, Observed, Refusal
from tidemill_operator.plan import Plan, make_plan
from tidemill_operator.scaling_view import ScalingView
from tidemill_operator.situation import Condition
from tidemill_operator.spec import revision_of

REVISION = revision_of(make_service())
TEMPLATE = manifests.build_pod_template(make_context())


def plan_for(observed: Observed, spec: dict[str, Any] | None = None, **metadata: Any) -> Plan:
    return make_plan(make_service(spec, **metadata), observed, IMAGE, NOW)


def settled(**changes: Any) -> Observed:
    """Build the world as it is when everything is done for the default service."""
    values: dict[str, Any] = {
        "deployments": (make_deployment(REVISION, 2),),
        "pods": ready_pods(REVISION, 2),
        "templates": {REVISION: TEMPLATE},
        "revision_numbers": {REVISION: 1},
        "children": (
            owned_child("ControllerRevision", f"chat-{REVISION}"),
            owned_child("Secret", "chat-admin-token"),
            owned_child("Service", "chat"),
            owned_child("Service", "chat-replicas"),
            owned_child("EndpointSlice", "chat-gateway"),
            owned_child("PodDisruptionBudget", "chat"),
        ),
        **changes,
    }
    return make_observed(**values)


def applied(plan: Plan) -> set[str]:
    return {f"{m['kind']} {m['metadata']['name']}" for m in plan.applies}


def replicas(plan: Plan) -> dict[str, int]:
    return {
        m["metadata"]["labels"][names.LABEL_REVISION]: m["spec"]["replicas"]
        for m in plan.applies
        if m["kind"] == "Deployment"
    }


def condition(plan: Plan, kind: str) -> tuple[str, str]:
    found = next(c for c in plan.status["conditions"] if c["type"] == kind)
    return found["status"], found["reason"]


def test_makes_every_child_of_a_new_service() -> None:
    plan = plan_for(make_observed(), {"routing": {"ingress": {"host": "chat.example.com"}}})
    assert applied(plan) == {
        f"ControllerRevision chat-{REVISION}",
        f"Deployment chat-{REVISION}",
        "Service chat",
        "Service chat-replicas",
        "EndpointSlice chat-gateway",
        "PodDisruptionBudget chat",
        "Ingress chat",
    }
    assert [s["metadata"]["name"] for s in plan.secrets] == ["chat-admin-token"]
    assert plan.deletes == ()


def test_every_child_goes_with_its_owner() -> None:
    plan = plan_for(make_observed(), {"routing": {"ingress": {"host": "chat.example.com"}}})
    for manifest in [*plan.applies, *plan.secrets]:
        (owner,) = manifest["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("uid-chat", True, True)


def test_plans_the_same_for_the_same_world() -> None:
    assert plan_for(settled()) == plan_for(settled())


def test_writes_no_new_revision_and_no_event_when_everything_is_done() -> None:
    done = plan_for(settled())
    again = make_plan(
        {**make_service(), "status": dict(done.status)}, settled(), IMAGE, "2027-01-01T00:00:00Z"
    )
    assert again.status == done.status
    assert again.events == ()
    assert again.secrets == ()
    assert again.deletes == ()
    assert f"ControllerRevision chat-{REVISION}" not in applied(again)


def test_status_counts_and_addresses_what_is_there() -> None:
    status = plan_for(settled()).status
    assert {key: status[key] for key in status if key != "conditions"} == {
        "observedGeneration": 3,
        "replicas": 2,
        "readyReplicas": 2,
        "desiredReplicas": 2,
        "drainingReplicas": 0,
        "updatedReplicas": 2,
        "selector": "app.kubernetes.io/component=engine,app.kubernetes.io/name=tidemill,"
        "serving.tidemill.dev/service=chat",
        "url": "http://chat.prod.svc",
        "revision": {"current": REVISION, "update": REVISION},
    }


@pytest.mark.parametrize(
    ("ingress", "url"),
    [
        ({"host": "chat.example.com"}, "http://chat.example.com"),
        ({"host": "chat.example.com", "tls": {"secretName": "t"}}, "https://chat.example.com"),
    ],
)
def test_the_url_is_the_ingress_if_there_is_one(ingress: dict[str, Any], url: str) -> None:
    assert plan_for(settled(), {"routing": {"ingress": ingress}}).status["url"] == url


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


def test_what_is_no_longer_wanted_is_deleted() -> None:
    world = settled()
    plan = plan_for(settled(children=(*world.children, owned_child("Ingress", "chat"))))
    assert [(d.kind, d.name) for d in plan.deletes] == [("Ingress", "chat")]


def test_suspension_stops_replicas_and_keeps_the_rest() -> None:
    drained = {f"uid-{REVISION}-{number}": EngineLoad(is_refusing=True) for number in range(2)}
    pods = tuple(make_pod(REVISION, number, is_routable=False, drain_started_at=NOW) for number in range(2))
    plan = plan_for(settled(pods=pods, loads=drained), {"suspend": True})
    assert replicas(plan) == {REVISION: 0}
    assert [(d.kind, d.name) for d in plan.deletes] == [("PodDisruptionBudget", "chat")]
    assert condition(plan, "Suspended") == ("True", "Suspended")
    assert condition(plan, "Ready") == ("False", "Suspended")


@pytest.mark.parametrize("kind_and_name", [("Service", "chat"), ("Secret", "chat-admin-token")])
def test_takes_over_nothing_that_someone_else_made(kind_and_name: tuple[str, str]) -> None:
    kind, name = kind_and_name
    foreign = ChildView(kind=kind, name=name, uid="u", is_owned=False)
    plan = plan_for(make_observed(children=(foreign,)))
    assert (plan.applies, plan.secrets, plan.deletes) == ((), (), ())
    assert condition(plan, "Ready") == ("False", "NameTaken")
    assert condition(plan, "Stalled") == ("True", "NameTaken")


@pytest.mark.parametrize(
    ("kind", "name"), [("Secret", "chat-admin-token"), ("Deployment", "chat-0ld0ld00"), ("Service", "chat")]
)
def test_waits_until_a_predecessors_children_are_gone(kind: str, name: str) -> None:
    leftover = ChildView(kind=kind, name=name, uid="u", is_owned=False, is_leftover=True)
    plan = plan_for(make_observed(children=(leftover,)))
    assert (plan.applies, plan.secrets, plan.deletes) == ((), (), ())
    assert condition(plan, "Ready") == ("False", "PredecessorLeaving")
    assert plan.obstacle is not None


def test_deletes_nothing_that_someone_else_made() -> None:
    foreign = ChildView(kind="Ingress", name="chat", uid="u", is_owned=False)
    world = settled()
    assert plan_for(settled(children=(*world.children, foreign))).deletes == ()


def test_an_invalid_spec_touches_nothing_and_says_so() -> None:
    plan = plan_for(settled(), {"model": {"uri": "ftp://a/b"}})
    assert (plan.applies, plan.secrets, plan.deletes) == ((), (), ())
    assert condition(plan, "Ready") == ("False", "InvalidSpec")
    assert plan.events[0].type == "Warning"


def test_a_refused_write_shows_in_the_conditions() -> None:
    refusal = Refusal(what="PATCH /apis/apps/v1/deployments/chat", message="exceeded quota")
    plan = plan_for(make_observed(refusal=refusal))
    assert condition(plan, "Ready") == ("False", "WriteRefused")
    assert "exceeded quota" in plan.status["conditions"][0]["message"]


def test_a_template_with_a_persons_words_is_checked_before_it_is_frozen() -> None:
    template = {"template": {"spec": {"nodeSelector": {"gpu": "h200"}}}}
    plan = plan_for(make_observed(), template)
    (checked,) = plan.checks
    assert checked["kind"] == "Deployment"
    assert checked["spec"]["replicas"] == 0
    assert checked["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h200"}
    assert plan_for(make_observed()).checks == ()


def test_a_cache_is_claimed_where_asked_for() -> None:
    cache = {"size": "20Gi", "storageClassName": "fast", "accessModes": ["ReadWriteMany"]}
    plan = plan_for(make_observed(), {"model": {"uri": "hf://a/b", "cache": cache}})
    (claim,) = [m for m in plan.applies if m["kind"] == "PersistentVolumeClaim"]
    assert claim["metadata"]["name"] == "chat-model-cache"
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "20Gi"}},
        "storageClassName": "fast",
    }


def test_the_last_failure_is_kept_after_the_recovery() -> None:
    crashed = make_pod(
        REVISION, termination=make_termination(message='{"reason": "NoModel", "message": "gone"}')
    )
    service = make_service()
    failed = make_plan(service, settled(pods=(crashed,)), IMAGE, NOW)
    assert condition(failed, "Ready") == ("False", "NoModel")
    recovered = make_plan({**service, "status": dict(failed.status)}, settled(), IMAGE, NOW)
    assert condition(recovered, "Ready") == ("True", "ReplicasReady")
    assert recovered.status["model"]["lastFailure"] == {
        "reason": "NoModel",
        "message": "gone",
        "pod": crashed.name,
        "exitCode": 1,
        "time": "2026-11-29T11:00:10Z",
    }


def test_an_evicted_pod_that_was_replaced_spoils_nothing() -> None:
    evicted = make_pod(REVISION, 9, phase="Failed", phase_reason="Evicted", is_running=False)
    plan = plan_for(settled(pods=(*ready_pods(REVISION, 2), evicted)))
    assert condition(plan, "Progressing") == ("False", "Settled")
    assert plan.status["replicas"] == 2


def test_tells_when_a_service_becomes_ready_and_when_it_fails() -> None:
    starting = plan_for(settled(pods=()))
    service = {**make_service(), "status": dict(starting.status)}
    (ready,) = make_plan(service, settled(), IMAGE, NOW).events
    assert (ready.type, ready.reason) == ("Normal", "ReplicasReady")
    crashed = make_pod(REVISION, termination=make_termination())
    (failed,) = make_plan(service, settled(pods=(crashed,)), IMAGE, NOW).events
    assert (failed.type, failed.reason) == ("Warning", "CrashLoopBackOff")


def test_a_claimed_name_is_told_and_the_service_goes_on() -> None:
    plan = plan_for(settled(lost_claims=(LostClaim(what="chat", owner="other/chat"),)))
    assert condition(plan, "RouteReady") == ("False", "ServedNameConflict")
    assert condition(plan, "Ready") == ("True", "ReplicasReady")


def test_never_writes_what_the_gateways_own() -> None:
    service = {**make_service(), "status": {"activation": {"requestTime": NOW}}}
    assert "activation" not in make_plan(service, settled(), IMAGE, NOW).status
    invalid = {**make_service({"model": {}}), "status": {"activation": {"requestTime": NOW}}}
    assert "activation" not in make_plan(invalid, settled(), IMAGE, NOW).status


def test_status_stays_small_when_everything_fails_at_length() -> None:
    crashed = make_pod(REVISION, termination=make_termination(message="x" * 9000))
    assert len(str(plan_for(settled(pods=(crashed,))).status)) < 8192


AUTO: dict[str, Any] = {"replicas": None, "scaling": {"minReplicas": 1, "maxReplicas": 6}}


def test_the_autoscalers_decision_becomes_replicas_and_status() -> None:
    view = ScalingView(
        desired=5,
        status={"reason": "Queue"},
        conditions=(Condition(type="ScalingActive", is_true=True, reason="Scaling", message="by the queue"),),
    )
    plan = make_plan(make_service(AUTO), settled(), IMAGE, NOW, view)
    assert replicas(plan) == {REVISION: 5}
    assert plan.status["desiredReplicas"] == 5
    assert plan.status["scaling"] == {"reason": "Queue"}
    assert condition(plan, "ScalingActive") == ("True", "Scaling")
    assert [c["type"] for c in plan.status["conditions"]].count("ScalingActive") == 1


def test_a_service_without_a_decision_is_held_where_it_is() -> None:
    assert replicas(plan_for(settled(deployments=(make_deployment(REVISION, 4),)), AUTO)) == {REVISION: 4}


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
