"""The quick replica beside the engine's own scheduler in whole fleets: the same loads and policies with both.

Knows pairs of runs. A quick replica that led to other decisions would show here, whatever it does alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemill_bench.fleet import roster
from tidemill_bench.fleet.catalogue import shortened
from tidemill_bench.fleet.score import Point, mean
from tidemill_bench.fleet.sweep import CHOSEN, Job, Options, run_all

SECONDS = 1200.0
"""The scheduler takes thirty times as long as the quick replica, so that loads are cut after so long."""
POLICIES = ("llm-d", "keda-tokens")
"""Who is compared beside ours unless others are named, each as tuned."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One load and policy with both kinds of replicas."""

    quick: Point
    scheduler: Point

    @property
    def attainment_difference(self) -> float:
        """Return how much more the quick replicas attain."""
        return self.quick.attainment - self.scheduler.attainment

    @property
    def hours_ratio(self) -> float:
        """Return the quick replicas' GPU-hours over the scheduler's."""
        return self.quick.gpu_hours / self.scheduler.gpu_hours


def compare(options: Options) -> list[Pair]:
    """Run ours and some of the others on the reported loads, cut short, with both kinds of replicas."""
    wanted = options.policies or POLICIES
    candidates = [
        roster.ours(),
        *(c for c in roster.peers() if c.policy in wanted and CHOSEN[c.policy] == c.knobs),
    ]
    loads = [shortened(load, SECONDS) for load in options.reported()]
    jobs = [
        Job(candidate=candidate, load=load, settings=options.settings, store=options.store)
        for load in loads
        for candidate in candidates
    ]
    quick = run_all(jobs, options.workers)
    real = run_all([replace(job, engine="scheduler") for job in jobs], options.workers)
    return [Pair(quick=q, scheduler=s) for q, s in zip(quick, real, strict=True)]


def as_table(pairs: list[Pair]) -> str:
    """Return each pair in a line, and the means."""
    lines = [
        f"the first {SECONDS / 60:.0f} minutes of each load; attained % / GPU-hours / changes",
        f"{'load':14} {'policy':12} {'quick replica':>20} {'scheduler':>20}",
    ]
    lines += [
        f"{p.quick.load:14} {p.quick.policy:12} {_cell(p.quick):>20} {_cell(p.scheduler):>20}" for p in pairs
    ]
    apart = mean(abs(p.attainment_difference) for p in pairs)
    hours = mean(abs(p.hours_ratio - 1.0) for p in pairs)
    lines.append(f"apart on average: {apart:.1%} of the requests, {hours:.1%} of the GPU-hours")
    return "\n".join(lines)


def _cell(point: Point) -> str:
    return f"{point.attainment:.1%} / {point.gpu_hours:.2f} / {point.scale_events}"


def as_json(pairs: list[Pair]) -> dict[str, object]:
    """Return the figures of both, by load and policy, and how far they are apart."""
    table: dict[str, dict[str, object]] = {}
    for pair in pairs:
        table.setdefault(pair.quick.load, {})[pair.quick.policy] = {
            kind: {
                "attainment": round(point.attainment, 4),
                "gpu_hours": round(point.gpu_hours, 3),
                "scale_events": point.scale_events,
            }
            for kind, point in (("quick", pair.quick), ("scheduler", pair.scheduler))
        }
    return {
        "compared": table,
        "mean_attainment_difference": round(mean(abs(p.attainment_difference) for p in pairs), 4),
        "mean_gpu_hours_difference": round(mean(abs(p.hours_ratio - 1.0) for p in pairs), 4),
    }
