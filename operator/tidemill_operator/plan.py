"""What to write so that the cluster becomes what an InferenceService says: one value, nothing done yet.

Pure: the service, what was observed and the time in, a `Plan` out. It alone decides replicas. Refuses to know
the API, and keeps no memory: run twice on the same world, it plans the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidemill_operator import manifests, names
from tidemill_operator import status as status_module
from tidemill_operator.actions import EVENT_NORMAL, Delete, Event, PodChange
from tidemill_operator.announcements import replica_events, scaling_changes, transition_events
from tidemill_operator.assessment import assess, assess_only
from tidemill_operator.desired import desired_replicas
from tidemill_operator.errors import InvalidSpec
from tidemill_operator.failures import Failure
from tidemill_operator.leftovers import find_leftovers
from tidemill_operator.manifests import Context, Manifest, PodSettings
from tidemill_operator.model_plan import ask_again_seconds, pods_to_ask, template_checks
from tidemill_operator.observed import Observed, PodView
from tidemill_operator.ownership import find_obstacle
from tidemill_operator.replicas import Replicas, decide_replicas
from tidemill_operator.scaling_view import ScalingView
from tidemill_operator.spec import parse

Raw = Mapping[str, Any]

DEFAULT_SETTINGS: Final = PodSettings()
# Engines tell nobody when they have finished, so they are asked.
WHILE_DRAINING_SECONDS: Final = 1.0
WHILE_CANARY_SECONDS: Final = 5.0
UNTIL_ROUTES_ARE_KNOWN_SECONDS: Final = 10.0
# No watch shows Secrets: the run after the one that makes it reads the token.
UNTIL_TOKEN_IS_READ_SECONDS: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that one run does, in this order: ensured secrets, pods, applies, deletes, status, events.

    `asks`: pods whose load must be known first; a plan with any is made again before anything is done, as is
    one with `asks_progress`, pods whose model is on its way.
    `checks` are tried on the API server before anything is written. `lowered`: Deployments that may be
    written only as they were seen. `obstacle`: what keeps the run from acting and may go away without any
    event, so that it is tried again. `again_seconds`: when to look again.
    """

    checks: tuple[Manifest, ...] = ()
    secrets: tuple[Manifest, ...] = ()
    pods: tuple[PodChange, ...] = ()
    applies: tuple[Manifest, ...] = ()
    lowered: frozenset[str] = frozenset()
    deletes: tuple[Delete, ...] = ()
    status: Raw = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    asks: tuple[PodView, ...] = ()
    obstacle: Failure | None = None
    asks_progress: tuple[PodView, ...] = ()
    again_seconds: float | None = None


def make_plan(
    service: Raw,
    observed: Observed,
    engine_image: str,
    now: str,
    scaling: ScalingView | None = None,
    settings: PodSettings = DEFAULT_SETTINGS,
) -> Plan:
    """Decide what to write for one service at a time given in the API's form.

    In mode Auto `scaling.desired` decides replicas; without it the service is held where it is.
    """
    try:
        spec = parse(service)
    except InvalidSpec as error:
        return _plan_without_action(service, observed, Failure(reason="InvalidSpec", message=str(error)), now)
    metadata = service["metadata"]
    context = Context(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        spec=spec,
        engine_image=engine_image,
        desired_replicas=desired_replicas(spec, service.get("status") or {}, observed, scaling),
        settings=settings,
        propagated_labels=settings.labels_of(service),
    )
    if observed.namespace_is_leaving:
        return _plan_of_leaving(service, context, observed, now)
    wanted = [*_wanted_others(context, observed), manifests.build_admin_secret(context)]
    obstacle = find_obstacle(wanted, observed) or _unknown_revision(context, observed)
    if obstacle is not None:
        plan = _plan_without_action(service, observed, obstacle, now)
        return replace(plan, obstacle=obstacle)
    return _plan_children(service, context, observed, now, scaling or ScalingView())


def _plan_children(
    service: Raw, context: Context, observed: Observed, now: str, scaling: ScalingView
) -> Plan:
    revision = context.spec.target_revision
    fresh = manifests.build_pod_template(context)
    frozen = observed.template(revision)
    template = fresh if frozen is None else dict(frozen)
    replicas = decide_replicas(context, service.get("status") or {}, observed, now)
    wanted = _wanted_others(context, observed)
    leftovers = tuple(find_leftovers(context, observed, replicas, wanted))
    situation = replace(
        assess(context, observed, replicas, leftovers),
        has_newer_template=revision == context.spec.revision and template != fresh,
        scaling_conditions=scaling.conditions,
        activation_failure=scaling.activation_failure,
        cold_start_seconds=scaling.cold_start_seconds,
    )
    facts = status_module.Facts(
        situation=situation,
        revision=revision,
        serving=replicas.serving_revision,
        failed=replicas.failed,
        scaling=scaling.status,
    )
    status = status_module.build_status(service, facts, context, now)
    lowered = frozenset(names.deployment_name(context.name, lowered) for lowered in replicas.lowered)
    return Plan(
        checks=template_checks(context, fresh, is_new=frozen is None),
        secrets=() if _has_admin_secret(context, observed) else (manifests.build_admin_secret(context),),
        pods=replicas.changes,
        applies=(
            *_recorded_revision(context, observed, template),
            *_applied_deployments(context, observed, replicas, template),
            *wanted,
        ),
        lowered=lowered,
        deletes=leftovers,
        status=status,
        events=(
            *_revision_events(revision, is_new=frozen is None),
            *replica_events(context, observed, replicas),
            *scaling_changes(service, context, status),
            *transition_events(service, status),
        ),
        asks=tuple(pod for pod in observed.pods if pod.uid in replicas.asks),
        asks_progress=pods_to_ask(context, observed),
        again_seconds=_again_seconds(context, observed, replicas),
    )


def _plan_of_leaving(service: Raw, context: Context, observed: Observed, now: str) -> Plan:
    """Let go of the host names while the namespace is being deleted, which may wait for pods to drain."""
    message = "the namespace is being deleted; this service has given up its model names and its host"
    problem = Failure(reason=names.REASON_NAMESPACE_TERMINATING, message=message, stalls=False)
    ways = (
        observed.child("Ingress", names.ingress_name(context.name)),
        observed.child("HTTPRoute", names.http_route_name(context.name)),
    )
    plan = _plan_without_action(service, observed, problem, now)
    owned = (way for way in ways if way is not None and way.is_owned)
    return replace(plan, deletes=tuple(Delete(kind=way.kind, name=way.name, uid=way.uid) for way in owned))


def _plan_without_action(service: Raw, observed: Observed, problem: Failure, now: str) -> Plan:
    """Leave everything as it is and say why."""
    situation = assess_only(observed, problem)
    status = status_module.keep_status(service, situation, now)
    return Plan(status=status, events=tuple(transition_events(service, status)))


def _unknown_revision(context: Context, observed: Observed) -> Failure | None:
    """Say that the revision to go back to is not known."""
    asked = context.spec.rollout.to_revision
    if asked is None or observed.template(asked) is not None:
        return None
    numbers = observed.revision_numbers or {}
    known = ", ".join(sorted(numbers, key=lambda revision: numbers[revision], reverse=True)) or "none"
    message = f"spec.rollout.toRevision: there is no revision {asked}; known ones, newest first: {known}"
    return Failure(reason="RevisionNotFound", message=message)


def _recorded_revision(context: Context, observed: Observed, template: Manifest) -> list[Manifest]:
    """Freeze a new revision's template; number one that is taken up again as the newest."""
    revision = context.spec.target_revision
    numbers = observed.revision_numbers or {}
    newest = max(numbers.values(), default=0)
    if numbers.get(revision) == newest and numbers:
        return []
    return [manifests.build_controller_revision(context, revision, template, newest + 1)]


def _has_admin_secret(context: Context, observed: Observed) -> bool:
    return observed.child("Secret", names.admin_secret_name(context.name)) is not None


def _again_seconds(context: Context, observed: Observed, replicas: Replicas) -> float | None:
    if not _has_admin_secret(context, observed):
        return UNTIL_TOKEN_IS_READ_SECONDS
    if replicas.num_draining > 0:
        return WHILE_DRAINING_SECONDS
    if replicas.is_canary and replicas.failed is None:
        return WHILE_CANARY_SECONDS
    if context.spec.route is not None and not observed.knows_routes:
        return UNTIL_ROUTES_ARE_KNOWN_SECONDS
    return ask_again_seconds(context, observed)


def _applied_deployments(
    context: Context, observed: Observed, replicas: Replicas, template: Manifest
) -> list[Manifest]:
    """Build the Deployments of all revisions whose template is known."""
    target = context.spec.target_revision
    applied = []
    for revision, count in replicas.planned.items():
        frozen = template if revision == target else observed.template(revision)
        surge = replicas.scarcity.as_written() if replicas.scarcity and revision == target else ""
        if frozen is not None:
            applied.append(
                manifests.build_deployment(context, revision, dict(frozen), count, without_surge=surge)
            )
    return applied


def _wanted_others(context: Context, observed: Observed) -> list[Manifest]:
    built = [
        manifests.build_client_service(context),
        manifests.build_replicas_service(context),
        manifests.build_endpoint_slice(context, observed.gateways),
        manifests.build_disruption_budget(context),
        manifests.build_network_policy(context),
        manifests.build_cache_claim(context),
        manifests.build_ingress(context),
        manifests.build_http_route(context) if observed.knows_routes else None,
    ]
    return [manifest for manifest in built if manifest is not None]


def _revision_events(revision: str, *, is_new: bool) -> list[Event]:
    message = f"revision {revision} of the pod template is made"
    return [Event(type=EVENT_NORMAL, reason="RevisionCreated", message=message)] if is_new else []
