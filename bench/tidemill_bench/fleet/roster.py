"""Every policy by name, and the settings of each that are tried: what its users can turn. Ours ships one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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


def _plain(factory: Callable[..., FleetPolicy], *knobs: object) -> FleetPolicy:
    """Make a policy that needs to know nothing of the fleet; the last argument is the settings."""
    return factory(*knobs[:-1])


OURS_PERCENTILES = (80, 90, 99)
"""What else our one knob, the percentile of the SLO, is set to; 95 is what ships."""


def _tidemill(percentile: int, settings: FleetSettings) -> FleetPolicy:
    return Tidemill(policy_for(settings, percentile))


def _token_aware(backlog: float, kv: float, pace: Pace, settings: FleetSettings) -> FleetPolicy:
    return token_aware(1.0 / settings.machine.step_time.coefficients[1], backlog, kv, pace)


def _load_planner(share: float, sensitivity: float, settings: FleetSettings) -> FleetPolicy:
    return LoadPlanner(
        Targets(
            ttft_seconds=share * settings.slo.ttft_seconds,
            itl_seconds=share * settings.slo.itl_seconds,
            sensitivity=sensitivity,
            max_num_batched_tokens=settings.machine.max_num_batched_tokens,
        )
    )


def ours() -> Candidate:
    """Return what ships."""
    return Candidate(policy=OURS, knobs="as shipped", make=partial(_tidemill, 95))


def ours_otherwise() -> list[Candidate]:
    """Return ours with the other settings of its knob."""
    return [
        Candidate(policy=OURS, knobs=f"percentile {p}", make=partial(_tidemill, p)) for p in OURS_PERCENTILES
    ]


def peers() -> list[Candidate]:
    """Return every other policy with every setting."""
    return [*_hpa(), *_keda(), *_concurrency(), *_steppers()]


def _hpa() -> list[Candidate]:
    kv = [
        Candidate(
            policy="hpa-kv",
            knobs=f"target {target:.0%}, window {window:.0f} s",
            make=partial(_plain, on_kv_use, target, window),
        )
        for target, window in (
            (0.1, 300.0),
            (0.2, 300.0),
            (0.35, 300.0),
            (0.5, 300.0),
            (0.7, 300.0),
            (0.35, 60.0),
        )
    ]
    queue = [
        Candidate(
            policy="hpa-queue",
            knobs=f"target {target:g}, window {window:.0f} s",
            make=partial(_plain, on_queue, target, window),
        )
        for target, window in ((0.5, 300.0), (1.0, 300.0), (3.0, 300.0), (1.0, 900.0))
    ]
    return [*kv, *queue]


def _keda() -> list[Candidate]:
    return [
        Candidate(
            policy="keda-tokens",
            knobs=f"{backlog:g} s, KV {kv:.0%}, {name} pace",
            make=partial(_token_aware, backlog, kv, pace),
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
            make=partial(_plain, Kpa, target, window),
        )
        for target, window in (
            (5.0, 300.0),
            (10.0, 300.0),
            (16.0, 300.0),
            (24.0, 300.0),
            (10.0, 60.0),
            (16.0, 60.0),
        )
    ]
    kubeai = [
        Candidate(
            policy="kubeai",
            knobs=f"target {target:g}, window {window:.0f} s",
            make=partial(_plain, KubeAi, target, window),
        )
        for target, window in (
            (4.0, 120.0),
            (8.0, 120.0),
            (12.0, 120.0),
            (20.0, 120.0),
            (8.0, 600.0),
            (12.0, 600.0),
        )
    ]
    ray = [
        Candidate(
            policy="ray-serve",
            knobs=f"target {target:g}, delays {up:.0f} and {down:.0f} s",
            make=partial(_plain, RayServe, target, up, down),
        )
        for target, up, down in (
            (4.0, 5.0, 120.0),
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
            make=partial(
                _plain,
                SaturationAnalyser,
                Thresholds(kv=kv, queue=queue, kv_spare=spare, queue_spare=min(3.0, queue / 2)),
            ),
        )
        for kv, queue, spare in (
            (0.4, 5.0, 0.1),
            (0.6, 5.0, 0.1),
            (0.8, 5.0, 0.1),
            (0.6, 5.0, 0.2),
            (0.4, 3.0, 0.2),
            (0.2, 2.0, 0.1),
            (0.1, 1.0, 0.1),
        )
    ]
    dynamo = [
        Candidate(
            policy="dynamo",
            knobs=f"targets x {share:g}, sensitivity {sensitivity:.0%}",
            make=partial(_load_planner, share, sensitivity),
        )
        for share, sensitivity in ((0.25, 0.8), (0.35, 0.8), (0.5, 0.8), (1.0, 0.8), (0.35, 0.6))
    ]
    return [*llm_d, *dynamo]
