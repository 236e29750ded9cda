"""The PodDisruptionBudget over all replicas of a service, whatever their revision."""

from tidemill_operator import names
from tidemill_operator.manifests.context import Context, Manifest, child_metadata


def build_disruption_budget(context: Context) -> Manifest | None:
    """Build the budget; none for a service that wants no replicas."""
    if context.desired_replicas == 0:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child_metadata(context, names.disruption_budget_name(context.name)),
        "spec": {
            "maxUnavailable": context.spec.disruption_max_unavailable.as_written(),
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector_labels(context.name)},
        },
    }
