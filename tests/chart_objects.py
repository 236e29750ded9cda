"""Values that set much of the chart, and what is asked of the objects that it renders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CHART = Path(__file__).resolve().parents[1] / "charts" / "tidemill"
NAMESPACE = "tidemill-system"
EVERYTHING: dict[str, Any] = {
    "watchNamespaces": ["team-a", "team-b"],
    "networkPolicies": {
        "clientsFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
        "metricsFrom": [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        ],
    },
    "image": {"pullSecrets": [{"name": "registry"}]},
    "crds": {"keep": False},
    "operator": {
        "replicas": 2,
        "serviceAccount": {"name": "custom", "annotations": {"a": "b"}},
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "nodeSelector": {"e": "f"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
    },
    "gateway": {
        "maxBodyBytes": 123456789,
        "extraArgs": ["--log-level=debug"],
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "host": "llm.example.com",
            "annotations": {"a": "b"},
            "tls": [{"secretName": "tls", "hosts": ["llm.example.com"]}],
        },
        "podDisruptionBudget": {"maxUnavailable": "50%"},
        "tolerations": [{"operator": "Exists"}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
        ],
    },
}

Objects = list[dict[str, Any]]
Render = Callable[[dict[str, Any]], Objects]


def of_kind(objects: Objects, kind: str, name: str = "") -> Objects:
    """Give the objects of a kind whose names have a word in them."""
    return [found for found in objects if found["kind"] == kind and name in found["metadata"]["name"]]


def deployment(objects: Objects, component: str) -> dict[str, Any]:
    """Give the Deployment of a component."""
    (found,) = of_kind(objects, "Deployment", component)
    return found


def rules_of(objects: Objects, component: str) -> Iterator[tuple[str, str, str]]:
    """Give the rights of a component, one verb each."""
    for role in (*of_kind(objects, "ClusterRole", component), *of_kind(objects, "Role", component)):
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    yield from ((group, resource, verb) for verb in rule["verbs"])


def pod_templates(objects: Objects) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give every pod that the chart makes, by the name of what makes it."""
    for found in of_kind(objects, "Deployment"):
        yield found["metadata"]["name"], found["spec"]["template"]
    for found in of_kind(objects, "Pod"):
        yield found["metadata"]["name"], found
