"""The EndpointSlice that leads a service's clients to the gateway pods."""

from collections.abc import Sequence
from typing import Final

from tidemill_operator import names
from tidemill_operator.manifests.context import Context, Manifest, child_metadata
from tidemill_operator.observed import GatewayView

MAX_ENDPOINTS: Final = 100


def build_endpoint_slice(context: Context, gateways: Sequence[GatewayView]) -> Manifest | None:
    """Build the slice; none while no gateway is ready, since its address family cannot be changed later."""
    if not gateways:
        return None
    ordered = sorted(gateways, key=lambda gateway: gateway.name)
    is_v6 = ":" in ordered[0].ip
    same_family = [gateway for gateway in ordered if (":" in gateway.ip) == is_v6][:MAX_ENDPOINTS]
    labels = {
        **names.child_labels(context.name),
        names.LABEL_ENDPOINT_SLICE_SERVICE: names.client_service_name(context.name),
        names.LABEL_ENDPOINT_SLICE_MANAGED_BY: names.FIELD_MANAGER,
    }
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": child_metadata(context, names.gateway_slice_name(context.name), labels),
        "addressType": "IPv6" if is_v6 else "IPv4",
        "endpoints": [_endpoint(gateway) for gateway in same_family],
        "ports": [{"name": names.SERVICE_PORT_NAME, "port": names.GATEWAY_PORT, "protocol": "TCP"}],
    }


def _endpoint(gateway: GatewayView) -> Manifest:
    endpoint: Manifest = {
        "addresses": [gateway.ip],
        "conditions": {"ready": True, "serving": True, "terminating": False},
    }
    if gateway.node:
        endpoint["nodeName"] = gateway.node
    return endpoint
