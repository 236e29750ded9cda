"""What is planned in which world."""

from __future__ import annotations

from typing import Any

import pytest

from operator_builders import (
    IMAGE,
    NOW,
    make_deployment,
    make_observed,
    make_pod,
    make_service,
    make_termination,
    owned_child,
    ready_pods,
)
from plan_support import REVISION, applied, condition, plan_for, replicas, settled
from tidemill_operator.engine_load import EngineLoad
from tidemill_operator.observed import ChildView, LostClaim, Refusal
from tidemill_operator.plan import make_plan
from tidemill_operator.scaling_view import ScalingView
from tidemill_operator.situation import Condition


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


def test_a_spec_that_is_invalid_besides_does_not_make_a_way_lead_here() -> None:
    for reason, world in {
        "APIKeysMissing": settled(keys_problem="the Secret does not exist: nobody is let in"),
        "ServedNameConflict": settled(lost_claims=(LostClaim(what="chat", owner="a/b"),)),
        "GatewayReady": settled(),
    }.items():
        plan = plan_for(world, {"model": {"uri": "ftp://a/b"}})
        assert condition(plan, "RouteReady")[1] == reason
        assert condition(plan, "Ready") == ("False", "InvalidSpec")


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
