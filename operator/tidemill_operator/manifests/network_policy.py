"""The NetworkPolicy of a service's replicas: who may open a connection to an engine.

Only what comes in is restricted: where models are downloaded from is not known here.
"""

from collections.abc import Mapping

from tidemill_operator import names
from tidemill_operator.manifests.context import Context, Manifest, NetworkSettings, child_metadata


def build_network_policy(context: Context) -> Manifest | None:
    """Build the policy; none where policies are switched off."""
    settings = context.settings.network
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
