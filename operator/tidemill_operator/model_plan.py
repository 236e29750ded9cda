"""What a model's source asks of a plan: a template tried before it is taken, replicas asked how far they are.

Pure. Knows which sources need either. Refuses to know replicas and rollouts.
"""

from dataclasses import replace
from typing import Final

from tidemill_operator import manifests
from tidemill_operator.failures import CONFIG_REASONS, Failure
from tidemill_operator.manifests import Context, Manifest
from tidemill_operator.model_progress import furthest
from tidemill_operator.model_source import EngineSource, ImageSource
from tidemill_operator.observed import Observed, PodView, Refusal

# Status is written as often as a model's progress is looked at.
WHILE_LOADING_SECONDS: Final = 30.0
UNTIL_PROGRESS_SECONDS: Final = 3.0
MAX_PODS_ASKED: Final = 4
MAX_MESSAGE_LENGTH: Final = 600
INVALID_TEMPLATE: Final = "InvalidTemplate"
WRITE_FAILED: Final = "WriteFailed"


def template_checks(context: Context, template: Manifest, *, is_new: bool) -> tuple[Manifest, ...]:
    """Have a new template tried before it is frozen, if not every API server would take it."""
    is_plain = not context.spec.template and not isinstance(context.spec.model.source, ImageSource)
    if not is_new or is_plain:
        return ()
    return (manifests.build_deployment(context, context.spec.revision, template, 0),)


def refused(context: Context, refusal: Refusal) -> Failure:
    """Say what the API server refused, in its words."""
    hint = ""
    if refusal.reason == INVALID_TEMPLATE and isinstance(context.spec.model.source, ImageSource):
        hint = "oci:// needs a cluster with image volumes; "
    message = f"{hint}{refusal.what}: {refusal.message}"
    may_pass = refusal.reason == WRITE_FAILED
    return Failure(reason=refusal.reason, message=message[:MAX_MESSAGE_LENGTH], stalls=not may_pass)


def explained(context: Context, failure: Failure | None) -> Failure | None:
    """Say of a container that cannot be made what its model's source may have to do with it."""
    is_image = isinstance(context.spec.model.source, ImageSource)
    if failure is None or not is_image or failure.reason not in CONFIG_REASONS:
        return failure
    hint = "oci:// needs nodes whose container runtime mounts images, as containerd 2.1 does"
    return replace(failure, message=f"{hint}; {failure.message}"[:MAX_MESSAGE_LENGTH])


def pods_to_ask(context: Context, observed: Observed) -> tuple[PodView, ...]:
    """Choose pods to ask how far they are; what the engine has in its image is there too soon to ask."""
    if isinstance(context.spec.model.source, EngineSource):
        return ()
    return observed.on_their_way()[:MAX_PODS_ASKED]


def ask_again_seconds(context: Context, observed: Observed) -> float | None:
    """Say when to ask them again; None when nothing is on its way."""
    if not pods_to_ask(context, observed):
        return None
    is_known = furthest((observed.progress or {}).values()) is not None
    return WHILE_LOADING_SECONDS if is_known else UNTIL_PROGRESS_SECONDS
