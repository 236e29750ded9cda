"""Whether a way leads to a service: gateways, names that are its own, keys, and the route of a Gateway.

Pure. Knows the order in which that can fail. Refuses to know replicas.
"""

from collections.abc import Sequence

from tidemill_operator.observed import LostClaim, Observed
from tidemill_operator.routing_spec import RouteSpec
from tidemill_operator.situation import ROUTE_READY, Condition, Situation


def route_ready(situation: Situation) -> Condition:
    """Say whether requests find their way, and what is in it if they do not."""
    if situation.num_gateways == 0:
        message = (
            "no gateway pod is ready, so clients cannot reach the service; see the tidemill-gateway pods"
        )
        return Condition(type=ROUTE_READY, is_true=False, reason="NoGatewayReady", message=message)
    if situation.keys_problem:
        return Condition(
            type=ROUTE_READY, is_true=False, reason="APIKeysMissing", message=situation.keys_problem
        )
    if situation.lost_claims:
        return _conflict(situation.lost_claims)
    if situation.route_problem is not None:
        reason, message = situation.route_problem
        return Condition(type=ROUTE_READY, is_true=False, reason=reason, message=message)
    message = f"{situation.num_gateways} gateway pods route to the service"
    return Condition(type=ROUTE_READY, is_true=True, reason="GatewayReady", message=message)


def _conflict(lost: Sequence[LostClaim]) -> Condition:
    """Say which names lead to another service; a lost host weighs more than a lost model name."""
    told = ", ".join(f"{claim.what} by {claim.owner}" for claim in lost)
    if any(claim.is_host for claim in lost):
        reason, remedy = "HostConflict", "choose another host (spec.routing)"
    else:
        reason, remedy = "ServedNameConflict", "choose other spec.model.servedNames"
    message = (
        f"older services have names that this one wants ({told}) and get their requests; {remedy}, or "
        "address this service at the gateway by its path"
    )
    return Condition(type=ROUTE_READY, is_true=False, reason=reason, message=message)


def find_route_problem(wanted: RouteSpec | None, observed: Observed) -> tuple[str, str] | None:
    """Give reason and message of what keeps Gateways from leading here; None where nothing does."""
    if wanted is None:
        return None
    if not observed.knows_routes:
        message = "spec.routing.parentRefs needs the Gateway API, and this cluster knows no HTTPRoute"
        return "NoGatewayAPI", message
    if observed.route is None:
        return "RouteNotAccepted", "the HTTPRoute is being made"
    return ("RouteNotAccepted", observed.route.problem) if observed.route.problem else None
