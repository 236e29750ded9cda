"""The NetworkPolicy of a service's replicas: who may open a connection to an engine.

Only what comes in is restricted: where models are downloaded from is not known here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill_operator import names
from tidemill_operator.manifests.context import Context, Manifest, child_metadata


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Where gateway and operator run, and which further peers may read the engines' metrics."""

    operator_namespace: str
    gateway_labels: Mapping[str, str] = field(default_factory=dict)
    operator_labels: Mapping[str, str] = field(default_factory=dict)
    metrics_peers: tuple[Mapping[str, Any], ...] = ()


def build_network_policy(context: Context, settings: NetworkSettings | None) -> Manifest | None:
    """Build the policy; none where policies are switched off."""
    if settings is None:
        return None
    gateway = _peer(settings, settings.gateway_labels)
    operator = _peer(settings, settings.operator_labels)
    scrapers = [dict(peer) for peer in settings.metrics_peers]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(context, names.network_policy_name(context.name)),
        "spec": {
            "podSelector": {"matchLabels": names.selector_labels(context.name)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [gateway, operator, *scrapers], "ports": [_port(names.ENGINE_PORT)]},
                {"from": [operator], "ports": [_port(names.ENGINE_ADMIN_PORT)]},
            ],
        },
    }


def _peer(settings: NetworkSettings, labels: Mapping[str, str]) -> Manifest:
    return {
        "namespaceSelector": {"matchLabels": {names.LABEL_NAMESPACE_NAME: settings.operator_namespace}},
        "podSelector": {"matchLabels": dict(labels)},
    }


def _port(number: int) -> Manifest:
    return {"port": number, "protocol": "TCP"}
