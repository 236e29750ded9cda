"""Where ours' GPU-hours go, and what the same attainment costs a policy that knows the requests in advance.

Every scrape's pods are put into accounts. *Work* is what the requests need of full replicas; *room* what the
square-root rule adds at the utilization that ours begins with, whole replicas included; *starting* and
*draining* are pods that take nothing new; what is ready beyond that is kept for a *queue*, by a *window*, or
because the load was *judged* higher than it is; what was short of it counts negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill_bench.fleet.fleet import Fleet
from tidemill_bench.fleet.foresight import SETTINGS, STEP_SECONDS, Foresight, needed, work_over_time
from tidemill_bench.fleet.ours import Tidemill, policy_for
from tidemill_bench.fleet.score import Point, hours_for
from tidemill_operator.autoscaling.staffing import COMMON_PERCENTILE, first_utilization

if TYPE_CHECKING:
    from tidemill_bench.fleet.loads import Load
    from tidemill_bench.fleet.settings import FleetSettings
    from tidemill_operator.autoscaling.model import Decision, FleetLoad

NAMES = ("work", "room", "starting", "draining", "queue", "window", "judged", "short")
USED, WINDOW_SECONDS = first_utilization(COMMON_PERCENTILE), 60.0
_QUEUE_REASONS = {"Queue", "TimeToFirstToken"}


@dataclass(frozen=True, kw_only=True)
class Account:
    """One load: GPU-hours by account, and those of foresight at the same attainment."""

    load: str
    attainment: float
    gpu_hours: float
    hours: dict[str, float]
    with_foresight: float


def account(load: Load, settings: FleetSettings) -> Account:
    """Run ours on a load, put what it costs into accounts, and run foresight with all settings."""
    seen: list[FleetLoad] = []
    decided: list[Decision] = []
    policy = Tidemill(policy_for(settings), on_decision=lambda _, decision: decided.append(decision))
    result = Fleet(load, policy, settings, on_load=seen.append).run()
    work = work_over_time(load, settings, WINDOW_SECONDS)
    numbers = needed(work, USED)
    hours = dict.fromkeys(NAMES, 0.0)
    each = settings.scrape_interval_seconds / 3600 * settings.machine.num_gpus
    for moment, decision in zip(seen, decided, strict=False):
        if load.warmup_seconds <= moment.at < load.duration_seconds:
            place = min(len(work) - 1, int(moment.at / STEP_SECONDS))
            for name, replicas in _parts(moment, decision, float(work[place]), numbers[place]).items():
                hours[name] += replicas * each
    curve = [_foreseen(load, settings, used, window) for used, window in SETTINGS]
    return Account(
        load=load.name,
        attainment=result.attainment,
        gpu_hours=result.gpu_hours,
        hours=hours,
        with_foresight=hours_for(result.attainment, curve).gpu_hours,
    )


def _parts(load: FleetLoad, decision: Decision, work: float, enough: int) -> dict[str, float]:
    """Return the replicas of one moment by account."""
    draining = sum(pod.is_draining for pod in load.replicas)
    starting = sum(not pod.is_ready and not pod.is_draining for pod in load.replicas)
    beyond = len(load.replicas) - draining - starting - enough
    clamps = {clamp.name for clamp in decision.clamps}
    if beyond < 0:
        name = "short"
    elif "RequestsWait" in clamps or decision.reason in _QUEUE_REASONS:
        name = "queue"
    else:
        name = "window" if "StabilizationWindow" in clamps else "judged"
    return {"work": work, "room": enough - work, "starting": starting, "draining": draining, name: beyond}


def _foreseen(load: Load, settings: FleetSettings, used: float, window: float) -> Point:
    result = Fleet(load, Foresight(load, settings, used, window), settings).run()
    return Point(
        policy="foresight",
        knobs=f"{used:.0%} over {window:.0f} s",
        load=load.name,
        attainment=result.attainment,
        gpu_hours=result.gpu_hours,
        scale_events=result.num_scale_events,
        largest_queue=result.largest_queue,
    )


def as_table(accounts: list[Account]) -> str:
    """Return GPU-hours by account, a load a line, and each account's share of all."""
    lines = [f"{'load':18} {'attained':>8} {'hours':>6} {'foreseen':>8} " + _row(NAMES)]
    lines += [
        f"{a.load:18} {a.attainment:8.1%} {a.gpu_hours:6.2f} {a.with_foresight:8.2f} "
        + _row([f"{a.hours[name]:.2f}" for name in NAMES])
        for a in accounts
    ]
    total, foreseen = sum(a.gpu_hours for a in accounts), sum(a.with_foresight for a in accounts)
    shares = [f"{sum(a.hours[name] for a in accounts) / total:.1%}" for name in NAMES]
    lines.append(f"{'all':18} {'':8} {total:6.2f} {foreseen:8.2f} " + _row(shares))
    return "\n".join(lines)


def _row(cells: tuple[str, ...] | list[str]) -> str:
    return " ".join(f"{cell:>8}" for cell in cells)


def as_json(accounts: list[Account]) -> dict[str, object]:
    """Return the accounts by load."""
    return {
        a.load: {
            "attainment": round(a.attainment, 4),
            "gpu_hours": round(a.gpu_hours, 3),
            "with_foresight": round(a.with_foresight, 3),
            "accounts": {name: round(hours, 3) for name, hours in a.hours.items()},
        }
        for a in accounts
    }
