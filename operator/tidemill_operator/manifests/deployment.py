"""The Deployment of one revision. Its template never changes, so its own rollout strategy never acts."""

from tidemill_operator import names
from tidemill_operator.manifests.context import Context, Manifest, child_metadata


def build_deployment(
    context: Context, revision: str, template: Manifest, replicas: int, *, lacking_device: str = ""
) -> Manifest:
    """Build a revision's Deployment around its frozen template, with the number of replicas planned.

    `lacking_device`: why the rollout goes on without surge; kept here, so that it ends as it began.
    """
    labels = names.revision_labels(context.name, revision)
    metadata = child_metadata(context, names.deployment_name(context.name, revision), labels)
    metadata["annotations"] = {names.ANNOTATION_REPLICAS: str(replicas)}
    if lacking_device:
        metadata["annotations"][names.ANNOTATION_WITHOUT_SURGE] = lacking_device
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "progressDeadlineSeconds": context.spec.model.load_timeout_seconds + 120,
            "selector": {"matchLabels": names.revision_selector_labels(context.name, revision)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": template,
        },
    }
