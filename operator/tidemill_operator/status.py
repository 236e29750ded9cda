"""The status of an InferenceService in the API's form.

Pure. Knows the fields of status and which of them survive when nothing can be said anew. Refuses to write
`status.activation`, which belongs to the gateways.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidemill_operator import conditions, names
from tidemill_operator.failures import Failure
from tidemill_operator.manifests import Context
from tidemill_operator.situation import Situation

Raw = Mapping[str, Any]

GATEWAY_FIELDS: Final = frozenset({"activation"})


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What status says besides what the context holds."""

    situation: Situation
    revision: str
    serving: str
    scaling: Raw = field(default_factory=dict)
    failed: str | None = None


def build_status(service: Raw, facts: Facts, context: Context, now: str) -> dict[str, Any]:
    """Build the whole status that the operator owns."""
    situation = facts.situation
    generation = service["metadata"].get("generation", 0)
    previous: Raw = service.get("status") or {}
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "replicas": situation.num_pods,
        "readyReplicas": situation.num_ready,
        "desiredReplicas": situation.desired,
        "drainingReplicas": situation.num_draining,
        "updatedReplicas": situation.num_updated_ready,
        "selector": names.selector_string(names.selector_labels(context.name)),
        "url": url_of(context),
        "revision": {"current": facts.serving, "update": facts.revision},
        "conditions": conditions.merge(
            conditions.evaluate(situation), previous.get("conditions") or (), now, generation
        ),
    }
    failure = _last_failure(situation.failure, previous, now)
    model = {
        **({} if situation.progress is None else situation.progress.as_status),
        **({} if failure is None else {"lastFailure": failure}),
    }
    if model:
        status["model"] = model
    if facts.failed is not None:
        status["revision"]["failed"] = facts.failed
    if facts.scaling:
        status["scaling"] = dict(facts.scaling)
    return status


def keep_status(service: Raw, situation: Situation, now: str) -> dict[str, Any]:
    """Keep what status said and replace its conditions; for a service that cannot be acted upon."""
    generation = service["metadata"].get("generation", 0)
    previous: Raw = service.get("status") or {}
    kept = {key: value for key, value in previous.items() if key not in GATEWAY_FIELDS}
    merged = conditions.merge(
        conditions.evaluate(situation), previous.get("conditions") or (), now, generation
    )
    return {**kept, "observedGeneration": generation, "conditions": merged}


def is_same(previous: Raw | None, status: Raw) -> bool:
    """Tell whether writing would change nothing that the operator owns."""
    before = {key: value for key, value in (previous or {}).items() if key not in GATEWAY_FIELDS}
    return before == dict(status)


def url_of(context: Context) -> str:
    """Give the base URL under which clients reach the service: by the ingress if there is one."""
    ingress = context.spec.ingress
    if ingress is None:
        return names.cluster_url(context.namespace, context.name)
    return f"{'https' if ingress.tls_secret_name else 'http'}://{ingress.host}"


def _last_failure(failure: Failure | None, previous: Raw, now: str) -> dict[str, Any] | None:
    """Describe the newest failure, or keep the last one known, so that a recovery does not hide its cause."""
    before: Raw | None = (previous.get("model") or {}).get("lastFailure")
    if failure is None:
        return None if before is None else dict(before)
    told: dict[str, Any] = {"reason": failure.reason, "message": failure.message}
    if failure.pod is not None:
        told["pod"] = failure.pod
    if failure.exit_code is not None:
        told["exitCode"] = failure.exit_code
    if failure.time is not None:
        told["time"] = failure.time
    elif before is not None and all(before.get(key) == value for key, value in told.items()):
        told["time"] = before.get("time", now)
    else:
        told["time"] = now
    return told
