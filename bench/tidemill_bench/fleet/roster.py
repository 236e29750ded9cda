"""Every policy by name, and the settings of each that are tried: what its users can turn. Ours ships one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill_bench.fleet.ours import Tidemill, policy_for
from tidemill_bench.fleet.peers.dynamo import LoadPlanner, Targets
from tidemill_bench.fleet.peers.hpa import Pace, on_kv_use, on_queue
from tidemill_bench.fleet.peers.keda import UNHURRIED, token_aware
from tidemill_bench.fleet.peers.knative import Kpa
from tidemill_bench.fleet.peers.kubeai import KubeAi
from tidemill_bench.fleet.peers.llm_d import SaturationAnalyser, Thresholds
from tidemill_bench.fleet.peers.ray_serve import RayServe

if TYPE_CHECKING:
    from tidemill_bench.fleet.fleet import FleetPolicy
    from tidemill_bench.fleet.settings import FleetSettings

OURS = "tidemill"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One policy with one setting of its knobs."""

    policy: str
    knobs: str
    make: Callable[[FleetSettings], FleetPolicy]


def ours() -> Candidate:
    """Return what ships."""
    return Candidate(policy=OURS, knobs="as shipped", make=lambda s: Tidemill(policy_for(s)))


def ours_by_percentile() -> list[Candidate]:
    """Return ours with other percentiles in the SLO: its users' knob, for the plot only."""
    return [
        Candidate(policy=OURS, knobs=f"P{p}", make=lambda s, p=p: Tidemill(policy_for(s, p)))
        for p in (80, 90, 99)
    ]


def peers() -> list[Candidate]:
    """Return every other policy with every setting."""
    return [*_hpa(), *_keda(), *_concurrency(), *_steppers()]


def _hpa() -> list[Candidate]:
    kv = [
        Candidate(
            policy="hpa-kv",
            knobs=f"target {target:.0%}, window {window:.0f} s",
            make=lambda _, t=target, w=window: on_kv_use(t, w),
        )
        for target, window in ((0.2, 300.0), (0.35, 300.0), (0.5, 300.0), (0.7, 300.0), (0.35, 60.0))
    ]
    queue = [
        Candidate(
            policy="hpa-queue",
            knobs=f"target {target:g}, window {window:.0f} s",
            make=lambda _, t=target, w=window: on_queue(t, w),
        )
        for target, window in ((0.5, 300.0), (1.0, 300.0), (3.0, 300.0), (1.0, 900.0))
    ]
    return [*kv, *queue]


def _keda() -> list[Candidate]:
    return [
        Candidate(
            policy="keda-tokens",
            knobs=f"{backlog:g} s, KV {kv:.0%}, {name} pace",
            make=lambda s, b=backlog, k=kv, p=pace: token_aware(
                1.0 / s.machine.step_time.coefficients[1], b, k, p
            ),
        )
        for backlog, kv, name, pace in (
            (0.4, 0.35, "default", Pace()),
            (0.8, 0.5, "default", Pace()),
            (1.5, 0.8, "default", Pace()),
            (0.8, 0.5, "guide's", UNHURRIED),
            (1.5, 0.8, "guide's", UNHURRIED),
        )
    ]


def _concurrency() -> list[Candidate]:
    knative = [
        Candidate(
            policy="knative",
            knobs=f"target {target:g}, window {window:.0f} s",
            make=lambda _, t=target, w=window: Kpa(t, w),
        )
        for target, window in ((10.0, 300.0), (16.0, 300.0), (24.0, 300.0), (10.0, 60.0), (16.0, 60.0))
    ]
    kubeai = [
        Candidate(
            policy="kubeai",
            knobs=f"target {target:g}, window {window:.0f} s",
            make=lambda _, t=target, w=window: KubeAi(t, w),
        )
        for target, window in ((8.0, 120.0), (12.0, 120.0), (20.0, 120.0), (8.0, 600.0), (12.0, 600.0))
    ]
    ray = [
        Candidate(
            policy="ray-serve",
            knobs=f"target {target:g}, delays {up:.0f} and {down:.0f} s",
            make=lambda _, t=target, u=up, d=down: RayServe(t, u, d),
        )
        for target, up, down in (
            (8.0, 5.0, 120.0),
            (12.0, 5.0, 120.0),
            (20.0, 5.0, 120.0),
            (12.0, 5.0, 600.0),
            (20.0, 30.0, 600.0),
        )
    ]
    return [*knative, *kubeai, *ray]


def _steppers() -> list[Candidate]:
    llm_d = [
        Candidate(
            policy="llm-d",
            knobs=f"KV {kv:.0%}, queue {queue:g}, spare {spare:.0%}",
            make=lambda _, k=kv, q=queue, s=spare: SaturationAnalyser(
                Thresholds(kv=k, queue=q, kv_spare=s, queue_spare=min(3.0, q / 2))
            ),
        )
        for kv, queue, spare in (
            (0.4, 5.0, 0.1),
            (0.6, 5.0, 0.1),
            (0.8, 5.0, 0.1),
            (0.6, 5.0, 0.2),
            (0.4, 3.0, 0.2),
        )
    ]
    dynamo = [
        Candidate(
            policy="dynamo",
            knobs=f"targets x {share:g}, sensitivity {sensitivity:.0%}",
            make=lambda s, x=share, y=sensitivity: LoadPlanner(
                Targets(
                    ttft_seconds=x * s.slo.ttft_seconds,
                    itl_seconds=x * s.slo.itl_seconds,
                    sensitivity=y,
                    max_num_batched_tokens=s.machine.max_num_batched_tokens,
                )
            ),
        )
        for share, sensitivity in ((0.25, 0.8), (0.35, 0.8), (0.5, 0.8), (1.0, 0.8), (0.35, 0.6))
    ]
    return [*llm_d, *dynamo]
