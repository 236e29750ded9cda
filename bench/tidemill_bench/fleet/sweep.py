"""All policies, all settings, all loads: each policy's setting is chosen on one half, reported on the other.

Every run is independent and deterministic, so the number of processes changes nothing, and the others'
results may be kept: only ours changes from day to day.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from tidemill_bench.fleet import catalogue, roster
from tidemill_bench.fleet.fleet import EngineKind, Fleet
from tidemill_bench.fleet.loads import Load
from tidemill_bench.fleet.score import Point, is_on_front, mean, saving_between, savings, tuned
from tidemill_bench.fleet.settings import FleetSettings
from tidemill_bench.fleet.stored import Store, key_of

WANTED_ATTAINMENT = 0.95
"""What a user would tune for: the percentile of the SLO."""
QUICK_LOADS = ("constant", "bursts", "long-prompts")
CHOSEN = {
    "hpa-kv": "target 10%, window 300 s",
    "hpa-queue": "target 1, window 900 s",
    "keda-tokens": "0.4 s, KV 35%, default pace",
    "knative": "target 5, window 300 s",
    "kubeai": "target 4, window 120 s",
    "ray-serve": "target 4, delays 5 and 120 s",
    "llm-d": "KV 20%, queue 2, spare 10%",
    "dynamo": "targets x 0.25, sensitivity 80%",
}
"""What the whole sweep chooses on the tuning loads; `--quick` takes it from here."""
QUICK_ALSO = {
    "hpa-kv": "target 35%, window 300 s",
    "keda-tokens": "0.8 s, KV 50%, default pace",
    "knative": "target 16, window 300 s",
    "kubeai": "target 12, window 120 s",
    "ray-serve": "target 12, delays 5 and 120 s",
    "llm-d": "KV 40%, queue 5, spare 10%",
}
"""A cheaper setting each, so that there is a curve where the shipped results are of an older simulator."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run."""

    candidate: roster.Candidate
    load: Load
    settings: FleetSettings
    engine: EngineKind = "quick"
    store: Store | None = None


def run(job: Job) -> Point:
    """Run one job, or take what was kept of it; ours always runs."""
    candidate = job.candidate
    if job.store is None or candidate.policy == roster.OURS:
        return _run(job)
    key = key_of(candidate.policy, candidate.knobs, job.load, job.settings, job.engine)
    point = job.store.find(key)
    if point is None:
        point = _run(job)
        job.store.keep(key, point)
    return point


def _run(job: Job) -> Point:
    made = job.candidate.make(job.settings)
    result = Fleet(job.load, made, job.settings, job.engine).run()
    return Point(
        policy=job.candidate.policy,
        knobs=job.candidate.knobs,
        load=job.load.name,
        attainment=result.attainment,
        gpu_hours=result.gpu_hours,
        scale_events=result.num_scale_events,
        largest_queue=result.largest_queue,
        num_failed=result.num_failed,
    )


@dataclass(frozen=True, kw_only=True)
class Report:
    """Ours and every setting of the others on the reported loads; `chosen`: what each was tuned to.

    `steady` is ours on constant loads of an hour each. `note` says what a reader must know of the figures.
    """

    ours: tuple[Point, ...]
    others: tuple[Point, ...]
    chosen: dict[str, str]
    steady: tuple[Point, ...] = ()
    ours_otherwise: tuple[Point, ...] = ()
    """Ours on the reported loads with the other settings of its knob; nothing where they were not run."""
    note: str = ""

    @property
    def policies(self) -> list[str]:
        """Return the other policies."""
        return list(self.chosen)

    def tuned_points(self, load: str) -> list[Point]:
        """Return the others on one load, each with the setting that it was tuned to."""
        return [p for p in self.others if p.load == load and self.chosen[p.policy] == p.knobs]

    def savings(self) -> dict[str, dict[str, float]]:
        """Return what ours saves at equal attainment: by other policy, by load."""
        curves = {policy: [p for p in self.others if p.policy == policy] for policy in self.policies}
        return savings(self.ours, curves)

    @property
    def best_other(self) -> str:
        """Return the policy over which ours saves least, of those that attain as much on most loads."""
        table = self.savings()
        most = [policy for policy in table if 2 * len(table[policy]) > len(self.ours)]
        return min(most or table, key=lambda policy: mean(table[policy].values()))

    @property
    def gpu_hours_saving(self) -> float:
        """Return what ours saves over the best other policy, on average, at equal attainment."""
        return mean(self.savings()[self.best_other].values())

    def savings_between_curves(self) -> dict[str, dict[str, float]]:
        """Return the same over all attainments that both reach, each side with all of its settings."""
        table: dict[str, dict[str, float]] = {}
        for policy in self.policies if self.ours_otherwise else ():
            row = table.setdefault(policy, {})
            for mine in self.ours:
                curve = [p for p in (mine, *self.ours_otherwise) if p.load == mine.load]
                theirs = [p for p in self.others if p.policy == policy and p.load == mine.load]
                saved = saving_between(curve, theirs)
                if saved is not None:
                    row[mine.load] = saved
        return table

    @property
    def saving_with_hindsight(self) -> float:
        """Return the same over the best setting of any policy, chosen anew for each load."""
        table = self.savings()
        least = [
            min(row[p.load] for row in table.values() if p.load in row)
            for p in self.ours
            if any(p.load in row for row in table.values())
        ]
        return mean(least)

    def as_json(self) -> dict[str, object]:
        """Return the object that the command prints last."""
        return {
            "held_out": {mine.load: self._load_json(mine) for mine in self.ours},
            "gpu_hours_saving": round(self.gpu_hours_saving, 4),
            "best_other": self.best_other,
            "saving_with_hindsight": round(self.saving_with_hindsight, 4),
            "saving_between_curves": {
                policy: round(mean(row.values()), 4) for policy, row in self.savings_between_curves().items()
            },
            "changes_an_hour_at_constant_load": {p.load: p.scale_events for p in self.steady},
            "tuned": self.chosen,
            "note": self.note,
        }

    def _load_json(self, mine: Point) -> dict[str, object]:
        others = self.tuned_points(mine.load)
        everything = [p for p in self.others if p.load == mine.load]
        return {
            "on_front": is_on_front(mine, others),
            "on_front_of_all_settings": is_on_front(mine, everything),
            "policies": {
                p.policy: {
                    "attainment": round(p.attainment, 4),
                    "gpu_hours": round(p.gpu_hours, 3),
                    "scale_events": p.scale_events,
                    "largest_queue": p.largest_queue,
                }
                for p in (mine, *others)
            },
        }


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run: `engine` is what replicas are made of; `loads`, `policies`: only these, all where empty."""

    settings: FleetSettings
    engine: EngineKind = "quick"
    workers: int = 1
    store: Store | None = None
    loads: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()

    def reported(self) -> list[Load]:
        """Return the loads to report."""
        return [load for load in catalogue.held_out() if not self.loads or load.name in self.loads]

    def others(self) -> list[roster.Candidate]:
        """Return the others to compare with, every setting."""
        return [c for c in roster.peers() if not self.policies or c.policy in self.policies]


def whole(options: Options) -> Report:
    """Tune on one half of the loads, report the other."""
    others = options.others()
    tuning = _runs(others, catalogue.tuning(), replace(options, engine="quick"))
    chosen = {
        policy: tuned([p for p in tuning if p.policy == policy], WANTED_ATTAINMENT)
        for policy in dict.fromkeys(c.policy for c in others)
    }
    report = _report(others, options.reported(), chosen, options)
    otherwise = _runs(roster.ours_otherwise(), options.reported(), options)
    return replace(report, ours_otherwise=tuple(otherwise))


def quick(options: Options) -> Report:
    """Report ours beside the others' kept results; where those are outdated, some loads and settings anew."""
    loads, others, store = options.reported(), options.others(), options.store or Store()
    chosen = {policy: knobs for policy, knobs in CHOSEN.items() if any(c.policy == policy for c in others)}
    if all(point is not None for _, point in kept(others, loads, options)):
        return _report(others, loads, chosen, replace(options, store=store))
    wanted = {(policy, knobs) for table in (CHOSEN, QUICK_ALSO) for policy, knobs in table.items()}
    few = [c for c in others if (c.policy, c.knobs) in wanted]
    report = _report(few, [load for load in loads if load.name in QUICK_LOADS], chosen, options)
    return replace(
        report, note="two settings for most policies: savings are larger than those of a whole sweep"
    )


def kept(
    candidates: Sequence[roster.Candidate], loads: Sequence[Load], options: Options
) -> list[tuple[str, Point | None]]:
    """Return the keys of runs with what is known of each."""
    store = options.store or Store()
    keys = [
        key_of(c.policy, c.knobs, load, options.settings, options.engine)
        for load in loads
        for c in candidates
    ]
    return [(key, store.find(key)) for key in keys]


def _report(
    others: list[roster.Candidate], loads: list[Load], chosen: dict[str, str], options: Options
) -> Report:
    steady = _runs([roster.ours()], catalogue.steady(), options) if options.engine == "quick" else []
    return Report(
        ours=tuple(_runs([roster.ours()], loads, options)),
        others=tuple(_runs(others, loads, options)),
        chosen=chosen,
        steady=tuple(steady),
    )


def _runs(candidates: Sequence[roster.Candidate], loads: Sequence[Load], options: Options) -> list[Point]:
    jobs = [
        Job(candidate=c, load=load, settings=options.settings, engine=options.engine, store=options.store)
        for c in candidates
        for load in loads
    ]
    return run_all(jobs, options.workers)


def run_all(jobs: Sequence[Job], workers: int) -> list[Point]:
    """Run jobs, in so many processes, and return their points in the same order."""
    return _mapped(run, jobs, workers)


def _mapped(function: Callable[[Job], Point], jobs: Sequence[Job], workers: int) -> list[Point]:
    count = min(workers, len(os.sched_getaffinity(0)), len(jobs))
    if count <= 1:
        return [function(job) for job in jobs]
    with ProcessPoolExecutor(max_workers=count) as pool:
        return list(pool.map(function, jobs, chunksize=4))
