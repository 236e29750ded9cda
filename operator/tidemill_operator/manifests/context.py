"""What every builder needs to know, and the metadata that all children share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill_operator import names
from tidemill_operator.spec import ServiceSpec

Manifest = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Where gateway and operator run, and which further peers may read the engines' metrics."""

    operator_namespace: str
    gateway_labels: Mapping[str, str]
    operator_labels: Mapping[str, str]
    metrics_peers: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """What the operator's administrator decides for all pods: endpoints per scheme, labels handed on.

    `network`: who may reach them; None where no NetworkPolicies are wanted.
    """

    endpoints: Mapping[str, str] = field(default_factory=dict)
    propagated_labels: tuple[str, ...] = names.PROPAGATED_LABELS
    network: NetworkSettings | None = None

    def endpoint_of(self, scheme: str) -> str | None:
        """Give the address that downloads of a scheme go to; None for the public one."""
        return self.endpoints.get(scheme)

    def labels_of(self, service: Mapping[str, Any]) -> dict[str, str]:
        """Choose the labels of an InferenceService that its Deployments and pods get too."""
        labels = service["metadata"].get("labels") or {}
        return {key: labels[key] for key in sorted(self.propagated_labels) if key in labels}


@dataclass(frozen=True, kw_only=True)
class Context:
    """One service as its children see it."""

    namespace: str
    name: str
    uid: str
    spec: ServiceSpec
    engine_image: str
    desired_replicas: int
    settings: PodSettings = field(default_factory=PodSettings)
    propagated_labels: Mapping[str, str] = field(default_factory=dict)


def child_metadata(context: Context, name: str, labels: dict[str, str] | None = None) -> Manifest:
    """Give a child's metadata: its labels and the owner whose deletion takes it along."""
    return {
        "name": name,
        "namespace": context.namespace,
        "labels": labels or names.child_labels(context.name),
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": context.name,
                "uid": context.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
