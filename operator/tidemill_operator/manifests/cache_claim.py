"""The volume claim that keeps a service's downloads."""

from tidemill_operator import names
from tidemill_operator.manifests.context import Context, Manifest, child_metadata


def build_cache_claim(context: Context) -> Manifest | None:
    """Build the claim; None unless spec.model.cache asks for one."""
    cache = context.spec.model.cache
    if cache is None:
        return None
    spec: Manifest = {
        "accessModes": list(cache.access_modes),
        "resources": {"requests": {"storage": cache.size}},
    }
    if cache.storage_class_name is not None:
        spec["storageClassName"] = cache.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": child_metadata(context, names.cache_claim_name(context.name)),
        "spec": spec,
    }
