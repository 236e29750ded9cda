"""Whether the names that a service's children need are free.

Pure. Knows that nothing of someone else is ever taken over, and that what a deleted service of the same name
left behind is about to go. Refuses to delete either.
"""

from collections.abc import Iterable

from tidemill_operator.failures import Failure
from tidemill_operator.manifests import Manifest
from tidemill_operator.observed import Observed


def find_obstacle(wanted: Iterable[Manifest], observed: Observed) -> Failure | None:
    """Find the first object that stands in the way of the wanted ones; None when there is none."""
    for child in observed.children:
        if child.is_leftover:
            message = (
                f"{child.kind} {child.name} still belongs to a deleted service of the same name; "
                "this one waits until the garbage collector has removed it"
            )
            return Failure(reason="PredecessorLeaving", message=message, stalls=False)
    for manifest in wanted:
        found = observed.child(manifest["kind"], manifest["metadata"]["name"])
        if found is not None and not found.is_owned:
            message = (
                f"{found.kind} {found.name} exists and does not belong to this service: delete it, or choose "
                "another name for the InferenceService"
            )
            return Failure(reason="NameTaken", message=message)
    return None
