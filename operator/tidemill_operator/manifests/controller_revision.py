"""The ControllerRevision that freezes a revision's pod template when the revision is made."""

from tidemill_operator import names
from tidemill_operator.manifests.context import Context, Manifest, child_metadata


def build_controller_revision(context: Context, revision: str, template: Manifest, number: int) -> Manifest:
    """Build the record of the template under which a revision runs from now on."""
    name = names.controller_revision_name(context.name, revision)
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": child_metadata(context, name, names.revision_labels(context.name, revision)),
        "revision": number,
        "data": {"template": template},
    }
