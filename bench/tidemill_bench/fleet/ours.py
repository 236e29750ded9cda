"""Our autoscaler in a simulated fleet: the operator's own `desired_replicas`, fed with the fleet's loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill_operator.autoscaling.decide import desired_replicas
from tidemill_operator.autoscaling.model import Decision, ScalingPolicy, ScalingState, SloTargets

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemill_bench.fleet.settings import FleetSettings
    from tidemill_operator.autoscaling.model import FleetLoad


def policy_for(settings: FleetSettings, percentile: int = 95) -> ScalingPolicy:
    """Return what a person would write for such a fleet: bounds, the SLO, nothing else."""
    return ScalingPolicy(
        min_replicas=settings.min_replicas,
        max_replicas=settings.max_replicas,
        slo=SloTargets(
            time_to_first_token_seconds=settings.slo.ttft_seconds,
            inter_token_seconds=settings.slo.itl_seconds,
            percentile=percentile,
        ),
        interval_seconds=settings.scrape_interval_seconds,
    )


class Tidemill:
    """The policy that ships."""

    def __init__(
        self, policy: ScalingPolicy, on_decision: Callable[[float, Decision], None] | None = None
    ) -> None:
        self._policy = policy
        self._state = ScalingState()
        self._on_decision = on_decision

    def decide(self, load: FleetLoad) -> int | None:
        """Return how many replicas there should be."""
        decision = desired_replicas(load, self._policy, self._state, load.at)
        self._state = decision.state
        if self._on_decision is not None:
            self._on_decision(load.at, decision)
        return decision.replicas
