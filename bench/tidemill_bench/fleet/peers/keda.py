"""KEDA with the token-aware triggers of llm-d's guide: seconds of prompts not yet computed, and KV use.

Source: llm-d, guides/workload-autoscaling/keda-epp-token-aware (README and ScaledObject of optimized-
baseline, 2026): replicas = max(ceil(sum(tokens in flight, not computed) / V_P / 1.5 s), ceil(sum(KV use) /
0.8)), polled every 15 s into an HPA; its behavior adds one pod each 180 s and removes one each 300 s. V_P
is calibrated: the machine's own prefill speed. `is_unhurried` false leaves the pace to the HPA's defaults,
as a knob.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill_bench.fleet.peers.hpa import Hpa, Pace
from tidemill_bench.fleet.peers.observed import figures, kv_use

if TYPE_CHECKING:
    from tidemill_operator.autoscaling.model import FleetLoad

UNHURRIED = Pace(up_pods=1, up_percent=0, up_period_seconds=180.0, down_pods=1, down_period_seconds=300.0)


def token_aware(prefill_speed: float, backlog_seconds: float, kv_target: float, pace: Pace) -> Hpa:
    """Scale on tokens of outstanding work."""

    def backlog(load: FleetLoad) -> float:
        tokens = sum(f.waiting_prompt_tokens or 0 for f in figures(load))
        held = sum(g.demand.held_prompt_tokens for g in load.gateways if g.demand is not None)
        return (tokens + held) / prefill_speed

    return Hpa(((backlog, backlog_seconds), (kv_use, kv_target)), pace)
