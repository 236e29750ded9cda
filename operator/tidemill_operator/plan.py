"""What to write so that the cluster becomes what an InferenceService says: one value, nothing done yet.

Pure: the service, what was observed and the time in, a `Plan` out. It alone decides replicas. Refuses to know
the API, and keeps no memory: run twice on the same world, it plans the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidemill_operator import conditions, manifests, names
from tidemill_operator import status as status_module
from tidemill_operator.conditions import Situation
from tidemill_operator.desired import desired_replicas
from tidemill_operator.errors import InvalidSpec
from tidemill_operator.failures import Failure, find_failure
from tidemill_operator.manifests import Context, Manifest
from tidemill_operator.observed import ChildView, Observed
from tidemill_operator.ownership import find_obstacle
from tidemill_operator.rollout import RevisionCounts, bounds_of, split_replicas
from tidemill_operator.scaling_events import scaling_events
from tidemill_operator.scaling_spec import MODE_ADVISORY
from tidemill_operator.scaling_view import ScalingView
from tidemill_operator.spec import parse

Raw = Mapping[str, Any]

EVENT_NORMAL: Final = "Normal"
EVENT_WARNING: Final = "Warning"


@dataclass(frozen=True, kw_only=True)
class Delete:
    """An object to delete, exactly the one that was seen."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something to tell whoever describes the service."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that one run does, in this order: ensured secrets, applies, deletes, status, events.

    `obstacle`: what keeps the run from acting and may go away without any event, so that it is tried again.
    """

    secrets: tuple[Manifest, ...] = ()
    applies: tuple[Manifest, ...] = ()
    deletes: tuple[Delete, ...] = ()
    status: Raw = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    obstacle: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """How many replicas each revision is given, and what that means for the service."""

    planned: Mapping[str, int]
    num_others_asked: int
    serving_revision: str


def make_plan(
    service: Raw, observed: Observed, engine_image: str, now: str, scaling: ScalingView | None = None
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
    )
    if observed.namespace_is_leaving:
        return _plan_of_leaving(service, context, observed, now)
    wanted = [*_wanted_others(context, observed), manifests.build_admin_secret(context)]
    obstacle = find_obstacle(wanted, observed)
    if obstacle is not None:
        plan = _plan_without_action(service, observed, obstacle, now)
        return replace(plan, obstacle=obstacle)
    return _plan_children(service, context, observed, now, scaling or ScalingView())


def _plan_children(
    service: Raw, context: Context, observed: Observed, now: str, scaling: ScalingView
) -> Plan:
    revision = context.spec.revision
    fresh = manifests.build_pod_template(context)
    frozen = observed.template(revision)
    template = fresh if frozen is None else dict(frozen)
    replicas = _decide_replicas(context, observed)
    applies: list[Manifest] = []
    if frozen is None:
        number = max(observed.revision_numbers, default=0) + 1
        applies.append(manifests.build_controller_revision(context, template, number))
    applies += _applied_deployments(context, observed, replicas, template)
    wanted = _wanted_others(context, observed)
    situation = replace(
        _situation(context, observed, replicas, has_newer_template=template != fresh),
        scaling_conditions=scaling.conditions,
        activation_failure=scaling.activation_failure,
        cold_start_seconds=scaling.cold_start_seconds,
    )
    has_secret = observed.child("Secret", names.admin_secret_name(context.name)) is not None
    status = status_module.build_status(
        service,
        status_module.Facts(
            situation=situation,
            revision=revision,
            serving=replicas.serving_revision,
            scaling=scaling.status,
        ),
        context,
        now,
    )
    return Plan(
        secrets=() if has_secret else (manifests.build_admin_secret(context),),
        applies=tuple(applies + wanted),
        deletes=tuple(_deletes(context, observed, replicas, wanted)),
        status=status,
        events=tuple(_events(service, context, observed, status, is_new=frozen is None)),
    )


def _plan_of_leaving(service: Raw, context: Context, observed: Observed, now: str) -> Plan:
    """Let go of the host name while the namespace is being deleted, which may wait for pods to drain."""
    message = "the namespace is being deleted; this service has given up its model names and its host"
    problem = Failure(reason="NamespaceTerminating", message=message, stalls=False)
    ingress = observed.child("Ingress", names.ingress_name(context.name))
    plan = _plan_without_action(service, observed, problem, now)
    if ingress is None or not ingress.is_owned:
        return plan
    return replace(plan, deletes=(Delete(kind=ingress.kind, name=ingress.name, uid=ingress.uid),))


def _plan_without_action(service: Raw, observed: Observed, problem: Failure, now: str) -> Plan:
    """Leave everything as it is and say why."""
    situation = Situation(
        problem=problem, num_ready=observed.num_ready(), num_gateways=len(observed.gateways)
    )
    status = status_module.keep_status(service, situation, now)
    return Plan(status=status, events=tuple(_transition_events(service, status)))


def _decide_replicas(context: Context, observed: Observed) -> Replicas:
    spec = context.spec
    target = _counts(spec.revision, observed)
    others = [
        _counts(deployment.revision, observed)
        for deployment in observed.deployments
        if deployment.revision != spec.revision
    ]
    planned = split_replicas(context.desired_replicas, target, others, spec.rollout)
    serving = max(
        (counts for counts in others if planned[counts.revision] > 0),
        key=lambda counts: (counts.ready, counts.created_at),
        default=target,
    )
    return Replicas(
        planned=planned,
        num_others_asked=sum(planned[counts.revision] for counts in others),
        serving_revision=serving.revision,
    )


def _counts(revision: str, observed: Observed) -> RevisionCounts:
    deployment = observed.deployment(revision)
    return RevisionCounts(
        revision=revision,
        asked=0 if deployment is None else deployment.asked_replicas,
        ready=observed.num_ready(revision),
        existing=len(observed.live_pods(revision)),
        created_at="" if deployment is None else deployment.created_at,
    )


def _applied_deployments(
    context: Context, observed: Observed, replicas: Replicas, template: Manifest
) -> list[Manifest]:
    """Build the Deployments of all revisions whose template is known."""
    applied = []
    for revision, count in replicas.planned.items():
        frozen = template if revision == context.spec.revision else observed.template(revision)
        if frozen is not None:
            applied.append(manifests.build_deployment(context, revision, dict(frozen), count))
    return applied


def _wanted_others(context: Context, observed: Observed) -> list[Manifest]:
    built = [
        manifests.build_client_service(context),
        manifests.build_replicas_service(context),
        manifests.build_endpoint_slice(context, observed.gateways),
        manifests.build_disruption_budget(context),
        manifests.build_ingress(context),
    ]
    return [manifest for manifest in built if manifest is not None]


def _deletes(
    context: Context, observed: Observed, replicas: Replicas, wanted: list[Manifest]
) -> list[Delete]:
    """Delete owned objects that nothing wants: emptied revisions with their records, and optional kinds."""
    emptied = [
        deployment
        for deployment in observed.deployments
        if deployment.revision != context.spec.revision
        and replicas.planned.get(deployment.revision, 0)
        == deployment.asked_replicas
        == deployment.replicas
        == 0
        and deployment.existing_replicas == 0
        and not observed.live_pods(deployment.revision)
    ]
    deletes = [Delete(kind="Deployment", name=gone.name, uid=gone.uid) for gone in emptied]
    gone_names = {gone.name for gone in emptied}
    kept = {deployment.name for deployment in observed.deployments} - gone_names
    kept.add(names.deployment_name(context.name, context.spec.revision))
    wanted_keys = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
    deletes += [
        Delete(kind=child.kind, name=child.name, uid=child.uid)
        for child in observed.children
        if child.is_owned and _is_unwanted(child, kept, wanted_keys)
    ]
    return deletes


def _is_unwanted(child: ChildView, kept_revisions: set[str], wanted: set[tuple[str, str]]) -> bool:
    if child.kind in _DELETED_OTHERWISE:
        return False
    if child.kind == "ControllerRevision":
        return child.name not in kept_revisions
    return (child.kind, child.name) not in wanted


def _situation(
    context: Context, observed: Observed, replicas: Replicas, *, has_newer_template: bool
) -> Situation:
    spec, desired = context.spec, context.desired_replicas
    pods = observed.pods_of(spec.revision)
    others = [pod for pod in observed.live_pods() if pod.revision != spec.revision]
    num_updated_ready = observed.num_ready(spec.revision)
    failure = None
    if num_updated_ready < desired:
        deployment = observed.deployment(spec.revision)
        failure = find_failure(pods, deployment, spec.model.load_timeout_seconds)
    refusal = observed.refusal
    problem = None
    if refusal is not None:
        problem = Failure(reason="WriteRefused", message=f"{refusal.what}: {refusal.message}"[:600])
    return Situation(
        problem=problem,
        is_suspended=spec.suspend,
        desired=desired,
        least_ready=bounds_of(spec.rollout, desired).least_ready,
        num_ready=observed.num_ready(),
        num_updated_ready=num_updated_ready,
        num_pods=len(observed.live_pods()),
        is_rolling_out=bool(others) or replicas.num_others_asked > 0,
        is_loading=any(pod.is_running and not pod.is_ready for pod in pods),
        failure=failure,
        num_gateways=len(observed.gateways),
        lost_claims=observed.lost_claims,
        scaling=spec.scaling,
        has_newer_template=has_newer_template,
    )


def _events(service: Raw, context: Context, observed: Observed, status: Raw, *, is_new: bool) -> list[Event]:
    events = []
    if is_new:
        message = f"revision {context.spec.revision} of the pod template is made"
        events.append(Event(type=EVENT_NORMAL, reason="RevisionCreated", message=message))
    for deployment in observed.deployments:
        asked = deployment.asked_replicas
        if deployment.replicas != asked:
            message = (
                f"Deployment {deployment.name} was scaled to {deployment.replicas} by someone else and is "
                f"put back: the InferenceService decides; use kubectl scale infsvc/{context.name} instead"
            )
            events.append(Event(type=EVENT_WARNING, reason="ReplicasPutBack", message=message))
    is_advisory = context.spec.scaling is not None and context.spec.scaling.mode == MODE_ADVISORY
    before = service.get("status") or {}
    for is_warning, reason, message in scaling_events(before, status, is_advisory=is_advisory):
        kind = EVENT_WARNING if is_warning else EVENT_NORMAL
        events.append(Event(type=kind, reason=reason, message=message))
    return [*events, *_transition_events(service, status)]


def _transition_events(service: Raw, status: Raw) -> list[Event]:
    """Tell when Ready changes its status or its reason."""
    before = _ready_of(service.get("status") or {})
    after = _ready_of(status)
    if (before.get("status"), before.get("reason")) == (after["status"], after["reason"]):
        return []
    is_good = after["status"] == "True" or after["reason"] in _PASSING_REASONS
    kind = EVENT_NORMAL if is_good else EVENT_WARNING
    return [Event(type=kind, reason=after["reason"], message=after["message"])]


def _ready_of(status: Raw) -> Raw:
    found = (c for c in status.get("conditions") or () if c.get("type") == conditions.READY)
    return next(found, {})


# A Secret is kept as long as the service; Deployments go when they are empty.
_DELETED_OTHERWISE: Final = frozenset({"Secret", "Deployment"})
_PASSING_REASONS: Final = frozenset(
    {
        "PredecessorLeaving",
        "ModelLoading",
        "ReplicasStarting",
        "RollingOut",
        "Suspended",
        "NoReplicas",
        "ScaledToZero",
        "ScalingDown",
    }
)
