"""A settled service to plan for, and what a plan says."""

from __future__ import annotations

from typing import Any

from operator_builders import (
    IMAGE,
    NOW,
    make_context,
    make_deployment,
    make_observed,
    make_service,
    owned_child,
    ready_pods,
)
from tidemill_operator import manifests, names
from tidemill_operator.observed import Observed
from tidemill_operator.plan import Plan, make_plan
from tidemill_operator.spec import revision_of

REVISION = revision_of(make_service())
TEMPLATE = manifests.build_pod_template(make_context())


def plan_for(observed: Observed, spec: dict[str, Any] | None = None, **metadata: Any) -> Plan:
    """Plan for a world, and the default service with changes of its spec."""
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
    """Name what a plan applies."""
    return {f"{m['kind']} {m['metadata']['name']}" for m in plan.applies}


def replicas(plan: Plan) -> dict[str, int]:
    """Give the replicas of each revision as planned."""
    return {
        m["metadata"]["labels"][names.LABEL_REVISION]: m["spec"]["replicas"]
        for m in plan.applies
        if m["kind"] == "Deployment"
    }


def condition(plan: Plan, kind: str) -> tuple[str, str]:
    """Give status and reason of a condition that a plan writes."""
    found = next(c for c in plan.status["conditions"] if c["type"] == kind)
    return found["status"], found["reason"]
