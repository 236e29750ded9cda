"""The Secret with the bearer token of the engines' admin port, all but the token itself.

The token is random, hence not made here: whoever creates the Secret adds it, once.
"""

from tidemill_operator import names
from tidemill_operator.manifests.context import Context, Manifest, child_metadata


def build_admin_secret(context: Context) -> Manifest:
    """Build the Secret without its data."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": child_metadata(context, names.admin_secret_name(context.name)),
        "type": "Opaque",
    }
