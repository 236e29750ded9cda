"""The Deployment of one revision. Its template never changes, so its own rollout strategy never acts."""

from typing import Final

from tidemill_operator import names
from tidemill_operator.manifests.context import Context, Manifest, child_metadata
from tidemill_operator.model_source import DownloadSource

SPARE_SECONDS: Final = 120


def build_deployment(
    context: Context, revision: str, template: Manifest, replicas: int, *, without_surge: str = ""
) -> Manifest:
    """Build a revision's Deployment around its frozen template, with the number of replicas planned.

    `without_surge`: why the rollout goes on without surge; kept here, so that it ends as it began.
    """
    labels = {**context.propagated_labels, **names.revision_labels(context.name, revision)}
    metadata = child_metadata(context, names.deployment_name(context.name, revision), labels)
    metadata["annotations"] = {names.ANNOTATION_REPLICAS: str(replicas)}
    if without_surge:
        metadata["annotations"][names.ANNOTATION_WITHOUT_SURGE] = without_surge
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 1,
            "progressDeadlineSeconds": progress_deadline_seconds(context),
            "selector": {"matchLabels": names.revision_selector_labels(context.name, revision)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": template,
        },
    }


def progress_deadline_seconds(context: Context) -> int:
    """Give a start the time that it may take: to load, and before that to download."""
    model = context.spec.model
    num_stages = 2 if isinstance(model.source, DownloadSource) else 1
    return num_stages * model.load_timeout_seconds + SPARE_SECONDS
