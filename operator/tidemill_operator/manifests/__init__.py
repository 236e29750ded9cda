"""Builders of every object that the operator writes, one file per kind.

Pure: a `Context` in, a manifest out, or None when nothing is wanted. Knows the API's shapes. Refuses to know
what exists in the cluster and what else is planned.
"""

from tidemill_operator.manifests.admin_secret import build_admin_secret
from tidemill_operator.manifests.cache_claim import build_cache_claim
from tidemill_operator.manifests.context import Context, Manifest, NetworkSettings, PodSettings
from tidemill_operator.manifests.controller_revision import build_controller_revision
from tidemill_operator.manifests.deployment import build_deployment
from tidemill_operator.manifests.disruption_budget import build_disruption_budget
from tidemill_operator.manifests.endpoint_slice import build_endpoint_slice
from tidemill_operator.manifests.http_route import build_http_route
from tidemill_operator.manifests.ingress import build_ingress
from tidemill_operator.manifests.network_policy import build_network_policy
from tidemill_operator.manifests.pod_template import build_pod_template
from tidemill_operator.manifests.services import build_client_service, build_replicas_service

__all__ = [
    "Context",
    "Manifest",
    "NetworkSettings",
    "PodSettings",
    "build_admin_secret",
    "build_cache_claim",
    "build_client_service",
    "build_controller_revision",
    "build_deployment",
    "build_disruption_budget",
    "build_endpoint_slice",
    "build_http_route",
    "build_ingress",
    "build_network_policy",
    "build_pod_template",
    "build_replicas_service",
]
