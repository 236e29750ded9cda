"""The gateway's view of the cluster: parsing, owner chains, updates."""

from typing import Any

import pytest

from gateway.builders import (
    chain_of,
    make_link,
    make_pod,
    make_service,
    make_world,
    owned_by,
    parsed_pod,
    parsed_service,
)
from tidemill_gateway.objects import Kind, Link, MalformedObjectError, Service, parse
from tidemill_gateway.world import World, put, remove, replace_all
from tidemill_operator import names

CHAT = make_service()


def replicas_of(world: World, name: str = "chat", namespace: str = "default") -> list[str]:
    service = next(
        found for found in world.services.values() if (found.namespace, found.name) == (namespace, name)
    )
    return [pod.name for pod in world.replicas(service)]


def test_a_pod_whose_owners_end_at_the_service_is_its_replica() -> None:
    assert replicas_of(make_world([CHAT], [make_pod("a"), make_pod("b", ready=False)])) == ["a", "b"]


@pytest.mark.parametrize(
    ("title", "owners"),
    [
        ("no owner", []),
        (
            "an owner that is not the controller",
            [{**owned_by("apps/v1", "ReplicaSet", "rs-default-chat")[0], "controller": False}],
        ),
        ("a ReplicaSet that does not exist", owned_by("apps/v1", "ReplicaSet", "rs-forged")),
        ("a StatefulSet with the ReplicaSet's uid", owned_by("apps/v1", "StatefulSet", "rs-default-chat")),
        ("a ReplicaSet of another group", owned_by("example.com/v1", "ReplicaSet", "rs-default-chat")),
        ("the service itself", owned_by(names.API_VERSION, names.KIND, "service-default-chat")),
    ],
)
def test_a_pod_with_forged_labels_is_nobodys_replica(title: str, owners: list[dict[str, Any]]) -> None:
    assert replicas_of(make_world([CHAT], [make_pod("forged", owners=owners)])) == []


def test_an_owner_chain_does_not_cross_namespaces() -> None:
    forged = make_pod("forged", "evil", owners=owned_by("apps/v1", "ReplicaSet", "rs-default-chat"))
    assert replicas_of(make_world([CHAT], [forged])) == []


def test_a_deployment_of_somebody_else_breaks_the_chain() -> None:
    world = make_world([CHAT], [make_pod()])
    foreign = make_link("deploy-default-chat", owners=owned_by("apps/v1", "Deployment", "other"))
    assert replicas_of(put(world, Kind.DEPLOYMENTS, parse(Kind.DEPLOYMENTS, foreign))) == []


def test_the_pods_of_a_deleted_and_recreated_service_are_not_taken_over() -> None:
    world = make_world([CHAT], [make_pod()])
    world = remove(world, Kind.SERVICES, "service-default-chat")
    world = put(world, Kind.SERVICES, parsed_service(uid="service-new"))
    assert replicas_of(world) == []


def test_services_of_one_name_in_two_namespaces_have_their_own_replicas() -> None:
    pods = [make_pod("a"), make_pod("b", "team")]
    world = make_world([CHAT, make_service("chat", "team")], pods)
    assert replicas_of(world) == ["a"]
    assert replicas_of(world, namespace="team") == ["b"]


def test_served_names_default_to_the_name_of_the_service() -> None:
    assert parsed_service().served_names == ("chat",)
    assert parsed_service(served=["a", "b"]).served_names == ("a", "b")


def test_the_ingress_host_is_a_host_of_the_service() -> None:
    assert parsed_service(host="Chat.Example.com").hosts == ("chat.example.com",)
    assert parsed_service().hosts == ()


def test_the_host_names_of_a_route_are_hosts_of_the_service() -> None:
    routing = {"parentRefs": [{"name": "public"}], "hostnames": ["A.example.com", "b.example.com"]}
    assert parsed_service(routing=routing).hosts == ("a.example.com", "b.example.com")


def test_the_port_is_the_one_that_the_engine_container_calls_http() -> None:
    assert parsed_pod(port=9000).port == 9000
    raw = make_pod()
    raw["spec"]["containers"][0]["name"] = "sidecar"
    pod = parse(Kind.PODS, raw)
    assert not isinstance(pod, Link)
    assert getattr(pod, "port", None) == names.ENGINE_PORT


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("raw", [{}, {"metadata": None}, {"metadata": {"name": "x"}}, {"metadata": [1]}])
def test_what_is_no_object_is_called_malformed(kind: Kind, raw: dict[str, Any]) -> None:
    with pytest.raises(MalformedObjectError, match=kind.value):
        parse(kind, raw)


def test_an_unchanged_object_gives_the_same_world_back() -> None:
    world = make_world([CHAT], [make_pod()])
    assert put(world, Kind.PODS, parsed_pod()) is world
    assert remove(world, Kind.PODS, "unknown") is world
    assert put(world, Kind.PODS, parsed_pod(ready=False)) is not world


def test_a_new_list_replaces_one_namespace_and_leaves_the_others() -> None:
    world = make_world([CHAT], [make_pod("a"), make_pod("b"), make_pod("c", "team")])
    listed = replace_all(world, Kind.PODS, "default", [parsed_pod("b"), parsed_pod("d")])
    assert {pod.name for pod in listed.pods.values()} == {"b", "c", "d"}
    everywhere = replace_all(world, Kind.PODS, None, [parsed_pod("d")])
    assert {pod.name for pod in everywhere.pods.values()} == {"d"}


def test_an_update_leaves_the_old_world_as_it_was() -> None:
    world = make_world([CHAT], [make_pod()])
    remove(world, Kind.PODS, "pod-default-chat-1")
    assert replicas_of(world) == ["chat-1"]


def test_services_are_ordered_by_age_then_by_name() -> None:
    young, old = (
        make_service("a", created="2026-02-01T00:00:00Z"),
        make_service("b", created="2025-02-01T00:00:00Z"),
    )
    twin = make_service("c", created="2025-02-01T00:00:00Z")
    assert [service.name for service in make_world([young, twin, old]).services_by_age] == ["b", "c", "a"]


def test_chains_may_arrive_in_any_order() -> None:
    deployment, replica_set = chain_of()
    world = put(World(), Kind.PODS, parsed_pod())
    world = put(world, Kind.REPLICA_SETS, parse(Kind.REPLICA_SETS, replica_set))
    world = put(world, Kind.SERVICES, parsed_service())
    assert replicas_of(world) == []
    world = put(world, Kind.DEPLOYMENTS, parse(Kind.DEPLOYMENTS, deployment))
    assert replicas_of(world) == ["chat-1"]


@pytest.mark.parametrize("way", ["its namespace is deleted", "it is deleted"])
def test_a_service_on_its_way_out_has_no_names_left(way: str) -> None:
    gone = [{"type": "Ready", "status": "False", "reason": names.REASON_NAMESPACE_TERMINATING}]
    status = {"conditions": gone} if way == "its namespace is deleted" else {}
    raw = make_service(served=["gpt"], host="chat.example.com", status=status)
    if way == "it is deleted":
        raw["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    leaving, staying = parse(Kind.SERVICES, raw), parse(Kind.SERVICES, make_service(served=["gpt"]))
    assert isinstance(leaving, Service)
    assert isinstance(staying, Service)
    assert (leaving.served_names, leaving.hosts) == ((), ())
    assert staying.served_names == ("gpt",)
