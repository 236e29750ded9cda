"""Whether a way leads to a service: gateways, names that are its own, keys, and the route of a Gateway.

Pure. Knows the order in which that can fail. Refuses to know replicas.
"""

from collections.abc import Sequence

from tidemill_operator.observed import LostClaim
from tidemill_operator.situation import ROUTE_READY, Condition, Situation


def route_ready(situation: Situation) -> Condition:
    """Say whether requests find their way, and what is in it if they do not."""
    if situation.num_gateways == 0:
        message = (
            "no gateway pod is ready, so clients cannot reach the service; see the tidemill-gateway pods"
        )
        return Condition(type=ROUTE_READY, is_true=False, reason="NoGatewayReady", message=message)
    if situation.lost_claims:
        return _conflict(situation.lost_claims)
    message = f"{situation.num_gateways} gateway pods route to the service"
    return Condition(type=ROUTE_READY, is_true=True, reason="GatewayReady", message=message)


def _conflict(lost: Sequence[LostClaim]) -> Condition:
    """Say which names lead to another service; a lost host weighs more than a lost model name."""
    told = ", ".join(f"{claim.what} by {claim.owner}" for claim in lost)
    if any(claim.is_host for claim in lost):
        reason, remedy = "HostConflict", "choose another spec.routing.ingress.host"
    else:
        reason, remedy = "ServedNameConflict", "choose other spec.model.servedNames"
    message = (
        f"older services have names that this one wants ({told}) and get their requests; {remedy}, or "
        "address this service at the gateway by its path"
    )
    return Condition(type=ROUTE_READY, is_true=False, reason=reason, message=message)
