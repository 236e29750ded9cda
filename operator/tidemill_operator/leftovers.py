"""Which owned objects nothing wants any more.

Pure. Knows when a revision is empty and how many former revisions are kept for a way back. Refuses to delete
what someone else made.
"""

from collections.abc import Sequence
from typing import Final

from tidemill_operator import names
from tidemill_operator.actions import Delete
from tidemill_operator.manifests import Context, Manifest
from tidemill_operator.observed import ChildView, DeploymentView, Observed
from tidemill_operator.replicas import Replicas

MAX_FORMER_REVISIONS: Final = 5
# A Secret is kept as long as the service; Deployments go when they are empty.
_DELETED_OTHERWISE: Final = frozenset({"Secret", "Deployment"})


def find_leftovers(
    context: Context, observed: Observed, replicas: Replicas, wanted: Sequence[Manifest]
) -> list[Delete]:
    """Find emptied revisions, records of revisions long gone, and optional kinds that are switched off."""
    emptied = [d for d in observed.deployments if _is_emptied(d, context, observed, replicas)]
    deletes = [Delete(kind="Deployment", name=gone.name, uid=gone.uid) for gone in emptied]
    kept = _kept_records(context, observed, gone={deployment.revision for deployment in emptied})
    wanted_keys = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
    deletes += [
        Delete(kind=child.kind, name=child.name, uid=child.uid)
        for child in observed.children
        if child.is_owned and _is_unwanted(child, kept, wanted_keys)
    ]
    return deletes


def _is_emptied(deployment: DeploymentView, context: Context, observed: Observed, replicas: Replicas) -> bool:
    """Tell whether a former revision has no replica, none on its way out, and is to get none."""
    revision = deployment.revision
    if revision == context.spec.target_revision or replicas.planned.get(revision, 0) > 0:
        return False
    is_asked_for_none = deployment.asked_replicas == deployment.replicas == 0
    return is_asked_for_none and deployment.existing_replicas == 0 and not observed.live_pods(revision)


def _kept_records(context: Context, observed: Observed, gone: set[str]) -> set[str]:
    """Name the records of revisions in use, and of the newest former ones."""
    used = {deployment.revision for deployment in observed.deployments} - gone
    used |= {context.spec.target_revision, context.spec.revision}
    numbers = observed.revision_numbers or {}
    former = sorted(set(numbers) - used, key=lambda revision: numbers[revision], reverse=True)
    kept = used | set(former[:MAX_FORMER_REVISIONS])
    return {names.controller_revision_name(context.name, revision) for revision in kept}


def _is_unwanted(child: ChildView, kept_records: set[str], wanted: set[tuple[str, str]]) -> bool:
    if child.kind in _DELETED_OTHERWISE:
        return False
    if child.kind == "ControllerRevision":
        return child.name not in kept_records
    return (child.kind, child.name) not in wanted
