"""What the observations and the decision about replicas mean: the facts that conditions state.

Pure. Knows which observation answers which question. Refuses to know conditions and their words
(conditions.py), and what is written.
"""

from collections.abc import Sequence

from tidemill_operator.actions import Delete
from tidemill_operator.failures import Failure, find_failure
from tidemill_operator.manifests import Context
from tidemill_operator.model_plan import explained, refused
from tidemill_operator.model_progress import furthest
from tidemill_operator.observed import Observed
from tidemill_operator.replicas import Replicas
from tidemill_operator.route_condition import find_route_problem
from tidemill_operator.situation import Situation


def assess(
    context: Context, observed: Observed, replicas: Replicas, leftovers: Sequence[Delete]
) -> Situation:
    """Give the facts of a service that is acted upon."""
    spec, desired, target = context.spec, context.desired_replicas, context.spec.target_revision
    pods = observed.pods_of(target)
    num_updated_ready = observed.num_ready(target)
    failure = replicas.canary_failure
    if failure is None and num_updated_ready < replicas.num_target and replicas.failed is None:
        failure = explained(
            context, find_failure(pods, observed.deployment(target), spec.model.load_timeout_seconds)
        )
    refusal = None if observed.refusal is None else refused(context, observed.refusal)
    may_pass = refusal is not None and not refusal.stalls
    return Situation(
        problem=None if may_pass else refusal,
        write_failure=refusal if may_pass else None,
        is_suspended=spec.suspend,
        desired=desired,
        least_ready=replicas.bounds.least_ready,
        num_ready=observed.num_ready(),
        num_updated_ready=num_updated_ready,
        num_pods=len(observed.live_pods()),
        is_rolling_out=_is_rolling_out(context, observed, replicas, leftovers),
        is_loading=any(pod.is_running and not pod.is_ready for pod in pods),
        is_downloading=any(pod.is_downloading for pod in pods),
        progress=furthest((observed.progress or {}).values()),
        num_draining=replicas.num_draining,
        rollout_note=_rollout_note(context, replicas, num_updated_ready),
        rollout_failure=_rollout_failure(replicas),
        lacking_device="" if replicas.scarcity is None else replicas.scarcity.device,
        failure=failure,
        num_gateways=len(observed.gateways),
        lost_claims=observed.lost_claims,
        keys_problem=observed.keys_problem,
        route_problem=find_route_problem(spec.route, observed),
        scaling=spec.scaling,
    )


def assess_only(observed: Observed, problem: Failure) -> Situation:
    """Give the facts of a service that is left as it is because of a problem."""
    return Situation(
        problem=problem,
        num_ready=observed.num_ready(),
        num_gateways=len(observed.gateways),
        lost_claims=observed.lost_claims,
        keys_problem=observed.keys_problem,
    )


def _is_rolling_out(
    context: Context, observed: Observed, replicas: Replicas, leftovers: Sequence[Delete]
) -> bool:
    """Tell whether anything of another revision is still there when this run is done."""
    target = context.spec.target_revision
    going = {gone.name for gone in leftovers if gone.kind == "Deployment"}
    staying = (d for d in observed.deployments if d.revision != target and d.name not in going)
    has_pods = any(pod.revision != target for pod in observed.live_pods())
    return has_pods or replicas.num_others_asked > 0 or any(staying)


def _rollout_note(context: Context, replicas: Replicas, num_ready: int) -> tuple[str, str] | None:
    """Say what is special about a rollout; None for a plain one."""
    canary = context.spec.rollout.canary
    if replicas.is_canary and canary is not None:
        message = (
            f"{canary.traffic_percent} % of the sessions go to revision {context.spec.target_revision} "
            f"({num_ready} of {replicas.num_target} replicas are ready); remove spec.rollout.canary to let "
            "it take over"
        )
        return "CanaryRunning", message
    if replicas.scarcity is not None:
        message = (
            f"{num_ready} of {context.desired_replicas} replicas are ready in the new revision; no node has "
            f"a free {replicas.scarcity.device}, so an old one goes before each new one, as with maxSurge 0"
        )
        return "RollingWithoutSurge", message
    return None


def _rollout_failure(replicas: Replicas) -> Failure | None:
    if replicas.failed is None:
        return None
    message = (
        f"revision {replicas.failed} failed as a canary and gets neither traffic nor replicas (see "
        f"status.model.lastFailure); revision {replicas.serving_revision} serves on. Change the spec, or "
        "remove spec.rollout.canary to roll it out nevertheless"
    )
    return Failure(reason="CanaryFailed", message=message)
