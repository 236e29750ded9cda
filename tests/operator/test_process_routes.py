"""Ways to a service from outside: routes of the Gateway API, and API keys that are not there.

The operator runs as a process on a real API server with controllers and no node, under the chart's
ServiceAccount. Tests play the Gateway's controller.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from harness.gateway_api import http_route_definition
from harness.kubectl import wait_until

from operator_world import World
from tidemill_operator import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.session import TestCluster

    from operator_process import Operator

pytestmark = pytest.mark.cluster
PUBLIC = {"name": "public", "namespace": "web"}
DEFINITION = f"crd/httproutes.{names.GATEWAY_API_GROUP}"


@pytest.fixture
def without_routes(crds: TestCluster) -> Iterator[None]:
    """Offer a cluster that does not know the Gateway API, and leave it so."""
    if crds.kubectl.find(DEFINITION) is not None:
        pytest.skip("the existing cluster has the Gateway API")
    yield
    crds.kubectl("delete", DEFINITION, "--ignore-not-found")


def answer(world: World, *, is_accepted: bool) -> None:
    """Say of the route what a Gateway's controller would."""
    route = world.kubectl.get(*world.scope, "httproute/chat")
    common = {
        "observedGeneration": route["metadata"]["generation"],
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "reason": "Accepted" if is_accepted else "NotAllowedByListeners",
        "message": "" if is_accepted else "no listener takes routes of this namespace",
    }
    accepted = {**common, "type": "Accepted", "status": str(is_accepted)}
    resolved = {**common, "type": "ResolvedRefs", "status": "True", "reason": "ResolvedRefs"}
    parent = {"group": names.GATEWAY_API_GROUP, "kind": "Gateway", **PUBLIC}
    told = {"parentRef": parent, "controllerName": "example.com/c", "conditions": [accepted, resolved]}
    patch = json.dumps({"status": {"parents": [told]}})
    world.kubectl(
        "patch", *world.scope, "httproute/chat", "--subresource=status", "--type=merge", "-p", patch
    )


def test_a_route_is_made_where_the_gateway_api_is_and_status_says_what_its_gateway_says(
    without_routes: None, world: World, start: Callable[[], Operator]
) -> None:
    world.make_gateway()
    world.apply({"routing": {"parentRefs": [PUBLIC], "hostnames": ["chat.example.com"]}})
    start()
    world.wait_for("RouteReady", "False", "NoGatewayAPI")

    world.kubectl("apply", "--server-side", "-f", http_route_definition())
    world.wait_for("RouteReady", "False", "RouteNotAccepted")
    route = wait_until("the route", lambda: world.kubectl.find(*world.scope, "httproute/chat"))
    assert route["spec"]["hostnames"] == ["chat.example.com"]
    assert route["spec"]["rules"][0]["backendRefs"][0]["name"] == "chat"
    answer(world, is_accepted=True)
    world.wait_for("RouteReady", "True", "GatewayReady")
    answer(world, is_accepted=False)
    world.wait_for("RouteReady", "False", "RouteNotAccepted")
    told = {c["type"]: c["message"] for c in world.service()["status"]["conditions"]}
    assert "no listener takes routes of this namespace" in told["RouteReady"]

    world.replace_routing({"ingress": {"host": "chat.example.com"}})
    wait_until("the Ingress", lambda: world.kubectl.find(*world.scope, "ingress/chat"))
    wait_until("the route to go", lambda: not world.kubectl.find(*world.scope, "httproute/chat"))
    world.wait_for("RouteReady", "True", "GatewayReady")


def test_api_keys_that_are_not_there_show_until_they_are(world: World, start: Callable[[], Operator]) -> None:
    world.make_gateway()
    world.apply({"routing": {"auth": {"secretRef": {"name": "team-keys"}}}, "replicas": 1})
    start()
    world.make_ready(world.pods(world.revision(), 1))
    world.wait_for("RouteReady", "False", "APIKeysMissing")
    world.wait_for("Ready", "False", "APIKeysMissing")
    literal = "--from-literal=red=key-of-red"
    world.kubectl("create", *world.scope, "secret", "generic", "team-keys", literal)
    world.wait_for("RouteReady", "True", "GatewayReady")
    world.wait_for("Ready", "True", "ReplicasReady")
