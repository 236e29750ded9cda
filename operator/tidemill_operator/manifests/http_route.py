"""The HTTPRoute (Gateway API) that leads Gateways of the cluster to a service."""

from tidemill_operator import names
from tidemill_operator.manifests.context import Context, Manifest, child_metadata
from tidemill_operator.routing_spec import ParentRef


def build_http_route(context: Context) -> Manifest | None:
    """Build the route; none unless the spec names Gateways.

    Without host names of its own it takes the service's path alone, so that many share a Gateway's hosts.
    """
    wanted = context.spec.route
    if wanted is None:
        return None
    prefix = "/" if wanted.hostnames else names.path_prefix(context.namespace, context.name)
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": prefix}}],
        # Answers of models stream for minutes: no time limit here, the gateway has its own.
        "timeouts": {"request": "0s"},
        "backendRefs": [{"name": names.client_service_name(context.name), "port": names.SERVICE_PORT}],
    }
    spec: Manifest = {"parentRefs": [_parent(parent) for parent in wanted.parents], "rules": [rule]}
    if wanted.hostnames:
        spec["hostnames"] = list(wanted.hostnames)
    return {
        "apiVersion": f"{names.GATEWAY_API_GROUP}/v1",
        "kind": "HTTPRoute",
        "metadata": child_metadata(context, names.http_route_name(context.name)),
        "spec": spec,
    }


def _parent(parent: ParentRef) -> Manifest:
    reference = {"group": names.GATEWAY_API_GROUP, "kind": "Gateway", "name": parent.name}
    if parent.namespace is not None:
        reference["namespace"] = parent.namespace
    if parent.section_name is not None:
        reference["sectionName"] = parent.section_name
    return reference
