"""Every name, label, annotation and port that the parts of Tidemill share in a cluster.

Knows how things are called. Refuses to know what they contain, who reads them, and any I/O: the operator's
builders and the gateway's discovery both import this module, so that no name is spelled twice.
"""

from typing import Final

GROUP: Final = "serving.tidemill.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "InferenceService"
PLURAL: Final = "inferenceservices"
SHORT_NAME: Final = "infsvc"
CATEGORY: Final = "tidemill"
CRD_NAME: Final = f"{PLURAL}.{GROUP}"
GATEWAY_API_GROUP: Final = "gateway.networking.k8s.io"

FIELD_MANAGER: Final = "tidemill-operator"
GATEWAY_FIELD_MANAGER: Final = "tidemill-gateway"

MAX_SERVICE_NAME_LENGTH: Final = 40
REVISION_LENGTH: Final = 8

APP: Final = "tidemill"
COMPONENT_ENGINE: Final = "engine"
COMPONENT_GATEWAY: Final = "gateway"
COMPONENT_OPERATOR: Final = "operator"

LABEL_APP_NAME: Final = "app.kubernetes.io/name"
LABEL_APP_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_APP_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_APP_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_SERVICE: Final = f"{GROUP}/service"
LABEL_REVISION: Final = f"{GROUP}/revision"
LABEL_ROUTABLE: Final = f"{GROUP}/routable"
ROUTABLE_YES: Final = "true"
ROUTABLE_NO: Final = "false"
LABEL_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
LABEL_ENDPOINT_SLICE_SERVICE: Final = "kubernetes.io/service-name"
LABEL_ENDPOINT_SLICE_MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"

ANNOTATION_RESTARTED_AT: Final = f"{GROUP}/restartedAt"
ANNOTATION_REPLICAS: Final = f"{GROUP}/replicas"
ANNOTATION_DRAIN_STARTED_AT: Final = f"{GROUP}/drainStartedAt"
ANNOTATION_WITHOUT_SURGE: Final = f"{GROUP}/withoutSurge"
ANNOTATION_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"

REASON_NAMESPACE_TERMINATING: Final = "NamespaceTerminating"

ENGINE_CONTAINER: Final = "engine"
DOWNLOAD_CONTAINER: Final = "download"
DOWNLOAD_SERVICES: Final = {
    "hf": "https://huggingface.co",
    "s3": "https://s3.REGION.amazonaws.com",
    "gs": "https://storage.googleapis.com",
}
PROPAGATED_LABELS: Final = ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class")

ENGINE_PORT: Final = 8000
ENGINE_PORT_NAME: Final = "http"
ENGINE_ADMIN_PORT: Final = 8001
ENGINE_ADMIN_PORT_NAME: Final = "admin"
GATEWAY_PORT: Final = 8080
GATEWAY_PORT_NAME: Final = "http"
GATEWAY_ADMIN_PORT: Final = 8081
OPERATOR_HTTP_PORT: Final = 8081
SERVICE_PORT: Final = 80
SERVICE_PORT_NAME: Final = "http"

HEALTH_LIVE_PATH: Final = "/health/live"
HEALTH_READY_PATH: Final = "/health/ready"

ADMIN_TOKEN_KEY: Final = "token"  # noqa: S105 - the key's name inside the Secret, not a secret
FORMER_TOKEN_KEY: Final = "former-token"  # noqa: S105 - as above
ADMIN_TOKEN_DIRECTORY: Final = "/var/run/tidemill/admin"  # noqa: S105 - a path
ADMIN_TOKEN_FILE: Final = f"{ADMIN_TOKEN_DIRECTORY}/{ADMIN_TOKEN_KEY}"

DEFAULT_GATEWAY_SELECTOR: Final = f"{LABEL_APP_NAME}={APP},{LABEL_APP_COMPONENT}={COMPONENT_GATEWAY}"
GATEWAY_KEYS_SECRET: Final = "tidemill-gateway-keys"  # noqa: S105 - a name
DEFAULT_OPERATOR_SELECTOR: Final = f"{LABEL_APP_NAME}={APP},{LABEL_APP_COMPONENT}={COMPONENT_OPERATOR}"
DEFAULT_LEASE_NAME: Final = FIELD_MANAGER


def deployment_name(service: str, revision: str) -> str:
    """Name the Deployment of one revision; its ControllerRevision is called the same."""
    return f"{service}-{revision}"


def controller_revision_name(service: str, revision: str) -> str:
    """Name the ControllerRevision that freezes one revision's pod template."""
    return f"{service}-{revision}"


def client_service_name(service: str) -> str:
    """Name the Service that clients and ingresses use; its endpoints are gateway pods."""
    return service


def replicas_service_name(service: str) -> str:
    """Name the headless Service over the engine pods, for scraping."""
    return f"{service}-replicas"


def gateway_slice_name(service: str) -> str:
    """Name the EndpointSlice that points the client Service at the gateway pods."""
    return f"{service}-gateway"


def admin_secret_name(service: str) -> str:
    """Name the Secret that holds the bearer token of the engines' admin port."""
    return f"{service}-admin-token"


def cache_claim_name(service: str) -> str:
    """Name the volume claim that keeps a service's downloads."""
    return f"{service}-model-cache"


def ingress_name(service: str) -> str:
    """Name the Ingress of a service."""
    return service


def http_route_name(service: str) -> str:
    """Name the HTTPRoute of a service."""
    return service


def network_policy_name(service: str) -> str:
    """Name the NetworkPolicy over all replicas of a service."""
    return service


def disruption_budget_name(service: str) -> str:
    """Name the PodDisruptionBudget over all replicas of a service."""
    return service


def selector_labels(service: str) -> dict[str, str]:
    """Give the labels that select all engine pods of a service, whatever their revision."""
    return {LABEL_APP_NAME: APP, LABEL_APP_COMPONENT: COMPONENT_ENGINE, LABEL_SERVICE: service}


def revision_selector_labels(service: str, revision: str) -> dict[str, str]:
    """Give the labels by which one revision's Deployment selects its pods; never `routable`."""
    return {**selector_labels(service), LABEL_REVISION: revision}


def child_labels(service: str) -> dict[str, str]:
    """Give the labels of every object that the operator makes for a service."""
    return {
        LABEL_APP_NAME: APP,
        LABEL_APP_INSTANCE: service,
        LABEL_APP_MANAGED_BY: FIELD_MANAGER,
        LABEL_APP_COMPONENT: COMPONENT_ENGINE,
        LABEL_SERVICE: service,
    }


def revision_labels(service: str, revision: str) -> dict[str, str]:
    """Give the labels of a Deployment or ControllerRevision of one revision."""
    return {**child_labels(service), LABEL_REVISION: revision}


def pod_labels(service: str, revision: str) -> dict[str, str]:
    """Give the labels of a revision's pods: routable until they drain."""
    return {**revision_labels(service, revision), LABEL_ROUTABLE: ROUTABLE_YES}


def selector_string(labels: dict[str, str]) -> str:
    """Format labels as the API's selector syntax, in a stable order."""
    return ",".join(f"{key}={labels[key]}" for key in sorted(labels))


def labels_in(selector: str) -> dict[str, str]:
    """Read the labels in a selector of the form that `selector_string` writes."""
    return dict(pair.split("=", 1) for pair in selector.split(",") if pair)


def path_prefix(namespace: str, service: str) -> str:
    """Give the gateway path under which a service is always reachable, without a trailing slash."""
    return f"/{namespace}/{service}"


def cluster_url(namespace: str, service: str) -> str:
    """Give the base URL of a service inside the cluster; `/v1/...` follows it."""
    return f"http://{client_service_name(service)}.{namespace}.svc"
