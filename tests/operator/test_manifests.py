"""What the builders make of a spec, the engine's pod aside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operator_builders import make_context, make_service
from tidemill_operator import manifests, names
from tidemill_operator.observed import GatewayView


def test_labels_that_are_handed_on_reach_deployment_and_pods() -> None:
    queued = replace(make_context(), propagated_labels={"kueue.x-k8s.io/queue-name": "team"})
    template = manifests.build_pod_template(queued)
    deployment = manifests.build_deployment(queued, queued.spec.revision, template, 1)
    for labels in (template["metadata"]["labels"], deployment["metadata"]["labels"]):
        assert labels["kueue.x-k8s.io/queue-name"] == "team"
    assert "kueue.x-k8s.io/queue-name" not in deployment["spec"]["selector"]["matchLabels"]


def test_only_labels_on_the_list_are_handed_on() -> None:
    service = make_service(labels={"kueue.x-k8s.io/queue-name": "team", "team": "a", "cost": "b"})
    settings = manifests.PodSettings(propagated_labels=(*names.PROPAGATED_LABELS, "cost"))
    assert settings.labels_of(service) == {"cost": "b", "kueue.x-k8s.io/queue-name": "team"}


def test_no_selector_depends_on_whether_a_pod_is_routable() -> None:
    context = make_context()
    template = manifests.build_pod_template(context)
    deployment = manifests.build_deployment(context, context.spec.revision, template, 2)
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert names.LABEL_ROUTABLE not in selector
    assert selector.items() <= template["metadata"]["labels"].items()
    assert template["metadata"]["labels"][names.LABEL_ROUTABLE] == "true"


def test_clients_are_led_to_the_gateway_and_nowhere_else() -> None:
    context = make_context()
    service = manifests.build_client_service(context)
    assert "selector" not in service["spec"]
    slice_ = manifests.build_endpoint_slice(
        context, [GatewayView(name="b", ip="10.0.0.2"), GatewayView(name="a", ip="10.0.0.1", node="n")]
    )
    assert slice_ is not None
    assert [e["addresses"] for e in slice_["endpoints"]] == [["10.0.0.1"], ["10.0.0.2"]]
    assert slice_["metadata"]["labels"]["kubernetes.io/service-name"] == service["metadata"]["name"]
    assert slice_["ports"][0]["name"] == service["spec"]["ports"][0]["name"]
    assert slice_["ports"][0]["port"] == service["spec"]["ports"][0]["targetPort"] == 8080


def test_a_slice_is_of_one_address_family_and_bounded() -> None:
    context = make_context()
    mixed = [GatewayView(name="a", ip="fd00::1"), GatewayView(name="b", ip="10.0.0.1")]
    slice_ = manifests.build_endpoint_slice(context, mixed)
    assert slice_ is not None
    assert (slice_["addressType"], len(slice_["endpoints"])) == ("IPv6", 1)
    many = [GatewayView(name=f"g{n:03}", ip=f"10.0.1.{n}") for n in range(150)]
    bounded = manifests.build_endpoint_slice(context, many)
    assert bounded is not None
    assert len(bounded["endpoints"]) == 100


def test_there_is_no_slice_without_a_gateway() -> None:
    assert manifests.build_endpoint_slice(make_context(), []) is None


@pytest.mark.parametrize(
    ("hostnames", "prefix"),
    [
        pytest.param(["chat.example.com"], "/", id="with a host of its own everything below it"),
        pytest.param(None, "/prod/chat", id="below its path on hosts that it shares"),
    ],
)
def test_a_route_leads_gateways_to_the_service(hostnames: list[str] | None, prefix: str) -> None:
    parents = [{"name": "public", "namespace": "web", "sectionName": "https"}, {"name": "inner"}]
    routing = {"parentRefs": parents, **({} if hostnames is None else {"hostnames": hostnames})}
    built = manifests.build_http_route(make_context({"routing": routing}))
    assert built is not None
    kind = {"group": "gateway.networking.k8s.io", "kind": "Gateway"}
    assert built["spec"]["parentRefs"] == [{**kind, **parent} for parent in parents]
    assert built["spec"].get("hostnames") == hostnames
    (rule,) = built["spec"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": prefix}}]
    assert rule["backendRefs"] == [{"name": "chat", "port": 80}]
    assert manifests.build_http_route(make_context()) is None


def test_there_is_no_ingress_unless_asked_for() -> None:
    assert manifests.build_ingress(make_context()) is None


def test_an_ingress_leads_its_host_to_the_service() -> None:
    ingress = {"host": "chat.example.com", "className": "nginx", "tls": {"secretName": "cert"}}
    built = manifests.build_ingress(make_context({"routing": {"ingress": ingress}}))
    assert built is not None
    assert built["spec"]["ingressClassName"] == "nginx"
    assert built["spec"]["tls"] == [{"hosts": ["chat.example.com"], "secretName": "cert"}]
    (rule,) = built["spec"]["rules"]
    assert rule["host"] == "chat.example.com"
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": "chat", "port": {"name": "http"}}


def test_the_disruption_budget_lets_sick_pods_go() -> None:
    built = manifests.build_disruption_budget(make_context({"disruption": {"maxUnavailable": "50%"}}))
    assert built is not None
    assert built["spec"]["maxUnavailable"] == "50%"
    assert built["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_there_is_no_disruption_budget_without_replicas() -> None:
    assert manifests.build_disruption_budget(make_context({"suspend": True})) is None


NETWORK = manifests.NetworkSettings(
    operator_namespace="tidemill-system",
    gateway_labels={"app.kubernetes.io/component": "gateway"},
    operator_labels={"app.kubernetes.io/component": "operator"},
    metrics_peers=({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},),
)


def test_only_gateway_and_operator_reach_an_engine_and_only_the_operator_its_admin_port() -> None:
    context = replace(make_context(), settings=manifests.PodSettings(network=NETWORK))
    policy = manifests.build_network_policy(context)
    assert policy is not None
    assert policy["spec"]["podSelector"] == {"matchLabels": names.selector_labels("chat")}
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    who = {
        rule["ports"][0]["port"]: [
            next(iter((peer.get("podSelector") or peer["namespaceSelector"])["matchLabels"].values()))
            for peer in rule["from"]
        ]
        for rule in policy["spec"]["ingress"]
    }
    assert who == {
        names.ENGINE_PORT: ["gateway", "operator", "monitoring"],
        names.ENGINE_ADMIN_PORT: ["operator"],
    }
    for rule in policy["spec"]["ingress"]:
        for peer in rule["from"]:
            assert peer["namespaceSelector"]["matchLabels"], "a peer without a namespace is the service's own"


def test_there_is_no_policy_where_none_is_wanted() -> None:
    assert manifests.build_network_policy(make_context()) is None
