"""What every builder needs to know, and the metadata that all children share."""

from dataclasses import dataclass
from typing import Any

from tidemill_operator import names
from tidemill_operator.spec import ServiceSpec

Manifest = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Context:
    """One service as its children see it."""

    namespace: str
    name: str
    uid: str
    spec: ServiceSpec
    engine_image: str
    desired_replicas: int


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
