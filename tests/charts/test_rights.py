"""Who may do what, and who may reach whom, as the chart has it."""

import importlib
from typing import TYPE_CHECKING, Any

import pytest

from chart_objects import (
    EVERYTHING,
    NAMESPACE,
    Objects,
    Render,
    deployment,
    of_kind,
    rules_of,
)

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.cluster


def test_the_gateway_reads_no_secret_but_its_own_and_writes_only_the_time_of_a_wake(
    render: Render, everything: Objects, defaults: Objects
) -> None:
    reading = {"inferenceservices", "pods", "replicasets", "deployments", "secrets"}
    for objects in (everything, defaults):
        rules = set(rules_of(objects, "gateway"))
        writing = {rule for rule in rules if rule[2] not in ("get", "list", "watch")}
        assert writing == {("serving.tidemill.dev", "inferenceservices/status", "patch")}
        assert {resource for _, resource, _ in rules - writing} == reading
        for role in (*of_kind(objects, "ClusterRole", "gateway"), *of_kind(objects, "Role", "gateway")):
            for rule in role["rules"]:
                if "secrets" in rule["resources"]:
                    assert role["kind"] == "Role"
                    assert rule["resourceNames"] == ["tidemill-gateway-keys"]
    without = set(rules_of(render({"gateway": {"scaleToZero": False}}), "gateway"))
    assert {verb for _, _, verb in without} == {"get", "list", "watch"}


def test_no_role_holds_a_wildcard(defaults: Objects) -> None:
    for component in ("operator", "gateway"):
        for rule in rules_of(defaults, component):
            assert not any("*" in part for part in rule)


def test_the_operator_gets_exactly_the_rights_that_its_code_lists(defaults: Objects) -> None:
    documented = set()
    for line in (importlib.import_module("tidemill_operator.cluster").__doc__ or "").splitlines():
        words = line.partition("(")[0].split()
        if len(words) >= 3 and (words[0] in ('""', "apps", "policy") or "." in words[0]):
            group = "" if words[0] == '""' else words[0]
            documented |= {(group, words[1], verb) for verb in words[2:]}
    assert len(documented) > 30, "the docstring could not be read"
    assert set(rules_of(defaults, "operator")) == documented


def test_with_a_list_of_namespaces_rights_hold_only_there(everything: Objects) -> None:
    cluster_wide = {found["metadata"]["name"] for found in of_kind(everything, "ClusterRoleBinding")}
    assert cluster_wide == set()
    for component in ("operator", "gateway"):
        bindings = [
            found
            for found in of_kind(everything, "RoleBinding")
            if found["roleRef"]
            == {**found["roleRef"], "kind": "ClusterRole", "name": f"tidemill-{component}"}
        ]
        assert {found["metadata"]["namespace"] for found in bindings} == {"team-a", "team-b"}
        arguments = deployment(everything, component)["spec"]["template"]["spec"]["containers"][0]["args"]
        assert [found for found in arguments if "watch-namespace" in found] == [
            "--watch-namespace=team-a",
            "--watch-namespace=team-b",
        ]


def test_bindings_name_the_accounts_that_the_pods_run_under(everything: Objects) -> None:
    accounts = {found["metadata"]["name"] for found in of_kind(everything, "ServiceAccount")}
    assert accounts == {"custom", "tidemill-gateway"}
    bindings = [*of_kind(everything, "RoleBinding"), *of_kind(everything, "ClusterRoleBinding")]
    subjects = {(bound["name"], bound["namespace"]) for found in bindings for bound in found["subjects"]}
    assert subjects == {(account, NAMESPACE) for account in accounts}
    for component, account in (("operator", "custom"), ("gateway", "tidemill-gateway")):
        assert deployment(everything, component)["spec"]["template"]["spec"]["serviceAccountName"] == account


def test_the_operator_makes_the_policies_that_the_values_ask_for(
    everything: Objects, render: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = importlib.import_module("tidemill_operator.__main__")
    monkeypatch.setenv("POD_NAMESPACE", NAMESPACE)

    def network_of(objects: Objects) -> Any:
        spec = deployment(objects, "operator")["spec"]["template"]["spec"]
        arguments = operator.make_parser().parse_args(spec["containers"][0]["args"])
        return operator.settings_of(arguments).pods.network

    network = network_of(everything)
    assert network.operator_namespace == NAMESPACE
    assert network.metrics_peers == tuple(EVERYTHING["networkPolicies"]["metricsFrom"])
    for component, labels in (("gateway", network.gateway_labels), ("operator", network.operator_labels)):
        pods = deployment(everything, component)["spec"]["template"]["metadata"]["labels"]
        assert labels.items() <= pods.items()
        assert labels["app.kubernetes.io/component"] == component
        (policy,) = of_kind(everything, "NetworkPolicy", component)
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= pods.items()
    off = render({"networkPolicies": {"enabled": False}})
    assert of_kind(off, "NetworkPolicy") == []
    assert network_of(off) is None


def test_only_operators_reach_the_operator_unless_the_values_say_who_else(defaults: Objects) -> None:
    (policy,) = of_kind(defaults, "NetworkPolicy", "operator")
    (rule,) = policy["spec"]["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "operator"


def test_no_right_to_read_nodes_or_namespaces_is_needed(defaults: Objects) -> None:
    for component in ("operator", "gateway"):
        asked = {resource for _, resource, _ in rules_of(defaults, component)}
        assert not asked & {"nodes", "namespaces", "customresourcedefinitions"}
