"""The two Services: one for clients, led to the gateway, and a headless one over the replicas."""

from tidemill_operator import names
from tidemill_operator.manifests.context import Context, Manifest, child_metadata


def build_client_service(context: Context) -> Manifest:
    """Build the Service that clients use; without a selector, since its endpoints are gateway pods."""
    port = {
        "name": names.SERVICE_PORT_NAME,
        "port": names.SERVICE_PORT,
        "targetPort": names.GATEWAY_PORT,
        "protocol": "TCP",
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(context, names.client_service_name(context.name)),
        "spec": {"type": "ClusterIP", "ports": [port]},
    }


def build_replicas_service(context: Context) -> Manifest:
    """Build the headless Service over all replicas, ready or not: a loading one is scraped too."""
    port = {
        "name": names.ENGINE_PORT_NAME,
        "port": names.ENGINE_PORT,
        "targetPort": names.ENGINE_PORT_NAME,
        "protocol": "TCP",
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(context, names.replicas_service_name(context.name)),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector_labels(context.name),
            "ports": [port],
        },
    }
