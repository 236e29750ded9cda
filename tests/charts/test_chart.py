"""The chart as helm renders it, checked by a real API server."""

import importlib
import json
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from chart_objects import (
    CHART,
    NAMESPACE,
    Objects,
    Render,
    deployment,
    of_kind,
    pod_templates,
)
from tidemill_gateway.__main__ import config_from, parse_arguments

if TYPE_CHECKING:
    from harness.session import TestCluster

pytestmark = pytest.mark.cluster


def test_helm_lint_finds_nothing(control_plane: "TestCluster") -> None:
    control_plane.helm("lint", "--strict", CHART)


@pytest.mark.parametrize("which", ["defaults", "everything"])
def test_the_api_server_accepts_every_object(
    which: str, request: pytest.FixtureRequest, control_plane: "TestCluster"
) -> None:
    objects: Objects = request.getfixturevalue(which)
    kubectl = control_plane.kubectl
    namespaces = {found["metadata"].get("namespace") for found in objects} - {None}
    for name in namespaces:
        kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    kubectl(
        "apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-",
        stdin=yaml.safe_dump_all(objects),
    )  # fmt: skip


@pytest.mark.parametrize("which", ["defaults", "everything"])
def test_the_restricted_pod_security_standard_admits_every_pod(
    which: str, request: pytest.FixtureRequest, control_plane: "TestCluster", namespace: str
) -> None:
    objects: Objects = request.getfixturevalue(which)
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    for name, template in pod_templates(objects):
        spec = {**template["spec"], "serviceAccountName": "default"}
        spec.pop("priorityClassName", None)
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        control_plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
        container = spec["containers"][0]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert spec["securityContext"]["runAsUser"] == 65532
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"gatewey": {}}, "gatewey"),
        ({"gateway": {"replica": 3}}, "replica"),
        ({"gateway": {"replicas": "two"}}, "replicas"),
        ({"gateway": {"replicas": -1}}, "replicas"),
        ({"gateway": {"service": {"type": "Headless"}}}, "type"),
        ({"gateway": {"maxBodyBytes": 0}}, "maxBodyBytes"),
        ({"gateway": {"podDisruptionBudget": {"maxUnavailable": "many"}}}, "maxUnavailable"),
        ({"gateway": {"resources": {"limits": {"memory": "lots"}}}}, "memory"),
        ({"image": {"operator": {"pullPolicy": "Sometimes"}}}, "pullPolicy"),
        ({"image": {"engine": {"repository": ""}}}, "repository"),
        ({"watchNamespaces": ["Team A"]}, "watchNamespaces"),
        ({"watchNamespaces": "team-a"}, "watchNamespaces"),
        ({"crds": {"install": "yes"}}, "install"),
        ({"operator": {"nodeSelector": {"a": 1}}}, "nodeSelector"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_wrong_values_are_refused_by_name(
    values: dict[str, Any], complaint: str, control_plane: "TestCluster", tmp_path: Path
) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    done = control_plane.helm("template", "x", CHART, "--values", file, check=False)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr
    assert complaint in done.stderr


def test_the_operator_is_told_labels_that_the_gateway_pods_have(defaults: Objects) -> None:
    arguments = deployment(defaults, "operator")["spec"]["template"]["spec"]["containers"][0]["args"]
    (selector,) = [found.split("=", 1)[1] for found in arguments if found.startswith("--gateway-selector=")]
    wanted = dict(pair.split("=", 1) for pair in selector.split(","))
    labels = deployment(defaults, "gateway")["spec"]["template"]["metadata"]["labels"]
    assert wanted.items() <= labels.items()
    assert wanted["app.kubernetes.io/component"] == "gateway"
    (service,) = of_kind(defaults, "Service", "gateway")
    assert service["metadata"]["name"] == "tidemill-gateway"
    assert service["spec"]["selector"].items() <= labels.items()


def test_the_gateway_understands_its_arguments(everything: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = deployment(everything, "gateway")["spec"]["template"]["spec"]
    monkeypatch.setenv("POD_NAMESPACE", NAMESPACE)
    assert {"POD_NAME", "POD_NAMESPACE"} <= {variable["name"] for variable in spec["containers"][0]["env"]}
    config = config_from(parse_arguments(spec["containers"][0]["args"]))
    assert config.home is not None
    assert (config.home.namespace, config.home.keys_secret) == (NAMESPACE, "tidemill-gateway-keys")
    assert of_kind(everything, "Secret", config.home.keys_secret)
    assert config.namespaces == ("team-a", "team-b")
    assert config.server.max_body_bytes == 123456789
    ports = {port["name"]: port["containerPort"] for port in spec["containers"][0]["ports"]}
    assert ports == {"http": config.port, "admin": config.admin_port}
    longest = config.shutdown_grace_seconds + config.shutdown_timeout_seconds
    assert spec["terminationGracePeriodSeconds"] > longest


def test_the_operator_understands_its_arguments(everything: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = importlib.import_module("tidemill_operator.__main__")
    spec = deployment(everything, "operator")["spec"]["template"]["spec"]
    monkeypatch.setenv("POD_NAMESPACE", NAMESPACE)
    assert "POD_NAMESPACE" in {variable["name"] for variable in spec["containers"][0]["env"]}
    settings = operator.settings_of(operator.make_parser().parse_args(spec["containers"][0]["args"]))
    assert settings.engine_image == "tidemill-engine:0.1.0"
    assert settings.operator_namespace == NAMESPACE
    assert settings.watch_namespaces == ("team-a", "team-b")
    ports = {port["name"]: port["containerPort"] for port in spec["containers"][0]["ports"]}
    assert ports == {"admin": settings.http_port}


@pytest.mark.parametrize(
    ("values", "api", "kind", "num_objects"),
    [
        ({"podMonitors": {"enabled": True}}, "monitoring.coreos.com/v1/PodMonitor", "PodMonitor", 3),
        (
            {"gateway": {"httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]}}},
            "gateway.networking.k8s.io/v1/HTTPRoute",
            "HTTPRoute",
            1,
        ),
    ],
    ids=["PodMonitors", "HTTPRoute"],
)
def test_what_needs_an_api_of_others_is_made_where_it_exists_and_refused_elsewhere(
    values: dict[str, Any],
    api: str,
    kind: str,
    num_objects: int,
    control_plane: "TestCluster",
    tmp_path: Path,
) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps(values))
    command = ("template", "tidemill", CHART, "--values", file)
    done = control_plane.helm(*command, "--api-versions", api)
    objects = [found for found in yaml.safe_load_all(done.stdout) if found]
    assert len(of_kind(objects, kind)) == num_objects
    refused = control_plane.helm(*command, check=False)
    assert refused.returncode != 0
    assert f"the cluster does not know {api.rpartition('/')[0]} {kind}" in refused.stderr


def test_several_operators_are_spread_and_kept_by_a_budget(everything: Objects, defaults: Objects) -> None:
    assert len(of_kind(everything, "PodDisruptionBudget", "operator")) == 1
    assert of_kind(defaults, "PodDisruptionBudget", "operator") == []
    (spread,) = deployment(everything, "operator")["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"


def test_the_definition_is_kept_on_uninstall_unless_asked_otherwise(
    defaults: Objects, everything: Objects, render: Render
) -> None:
    (kept,) = of_kind(defaults, "CustomResourceDefinition")
    (removed,) = of_kind(everything, "CustomResourceDefinition")
    assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert "helm.sh/resource-policy" not in removed["metadata"]["annotations"]
    assert kept["spec"] == removed["spec"]
    assert not of_kind(render({"crds": {"install": False}}), "CustomResourceDefinition")


def test_a_package_holds_the_definition_itself(control_plane: "TestCluster", tmp_path: Path) -> None:
    control_plane.helm("package", CHART, "--destination", tmp_path)
    (package,) = tmp_path.glob("*.tgz")
    with tarfile.open(package) as archive:
        file = archive.extractfile("tidemill/files/inferenceservices.yaml")
        assert file is not None
        assert yaml.safe_load(file.read())["kind"] == "CustomResourceDefinition"
        assert not any("schema.py" in name for name in archive.getnames())


def test_the_notes_say_what_to_do_next(control_plane: "TestCluster", namespace: str) -> None:
    done = control_plane.helm(
        "install",
        "tidemill",
        CHART,
        "--namespace",
        namespace,
        "--dry-run=server",
        "--set",
        "crds.install=false",
    )
    notes = done.stdout.partition("NOTES:")[2]
    assert "kubectl apply" in notes
    assert "port-forward service/tidemill-gateway 8080:80" in notes
    assert "/v1/chat/completions" in notes


def test_a_release_of_another_name_has_names_of_its_own(control_plane: "TestCluster") -> None:
    done = control_plane.helm("template", "mine", CHART)
    names = {found["metadata"]["name"] for found in yaml.safe_load_all(done.stdout) if found}
    assert {"mine-tidemill-gateway", "mine-tidemill-operator"} <= names
