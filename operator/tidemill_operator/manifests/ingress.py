"""The Ingress that gives a service a host name outside the cluster."""

from typing import Final

from tidemill_operator import names
from tidemill_operator.manifests.context import Context, Manifest, child_metadata

# What streaming needs of the ingress-nginx controller; others ignore annotations that they do not know.
STREAMING_ANNOTATIONS: Final = {
    "nginx.ingress.kubernetes.io/proxy-buffering": "off",
    "nginx.ingress.kubernetes.io/proxy-request-buffering": "off",
    "nginx.ingress.kubernetes.io/proxy-read-timeout": "3600",
    "nginx.ingress.kubernetes.io/proxy-send-timeout": "3600",
    "nginx.ingress.kubernetes.io/proxy-body-size": "32m",
}


def build_ingress(context: Context) -> Manifest | None:
    """Build the Ingress; none unless the spec gives a host."""
    wanted = context.spec.ingress
    if wanted is None:
        return None
    metadata = child_metadata(context, names.ingress_name(context.name))
    metadata["annotations"] = dict(STREAMING_ANNOTATIONS)
    backend = {
        "service": {
            "name": names.client_service_name(context.name),
            "port": {"name": names.SERVICE_PORT_NAME},
        }
    }
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    spec: Manifest = {"rules": [{"host": wanted.host, "http": {"paths": [path]}}]}
    if wanted.class_name:
        spec["ingressClassName"] = wanted.class_name
    if wanted.tls_secret_name:
        spec["tls"] = [{"hosts": [wanted.host], "secretName": wanted.tls_secret_name}]
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata, "spec": spec}
