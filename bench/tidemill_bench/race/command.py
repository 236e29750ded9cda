"""`tidemill-bench race`: flags in; progress, a table and one JSON object out."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tidemill_bench.race.contender import PRECISIONS, WORKLOADS, Precision, Workload, our_name
from tidemill_bench.race.contest import Contest, ContestOptions
from tidemill_bench.race.figures import RaceReport, as_table
from tidemill_bench.race.peers import contenders

_QUICK_ROUNDS = 1
_ROUNDS = 3


def add_arguments(race: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    names = [contender.name for contender in contenders()]
    race.add_argument("--quick", action="store_true", help="one round, each run under a minute")
    race.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    race.add_argument(
        "--contenders", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {', '.join(names)}"
    )
    race.add_argument("--rounds", type=int, help=f"default {_ROUNDS}, with --quick {_QUICK_ROUNDS}")
    race.add_argument("--requests-per-slot", type=int, default=8)
    race.add_argument("--seed", type=int, default=1)
    race.add_argument(
        "--configurations",
        nargs="+",
        default=(),
        metavar="LABEL",
        help="run a peer that has one of these in it alone, untried: for slow machines",
    )
    race.add_argument("--cache", type=Path, metavar="FOLDER", help="peers are kept here; about 12 GB")


def run(args: argparse.Namespace) -> dict[str, object]:
    """Race and return the figures."""
    from tidemill_bench.step.machine import describe  # noqa: PLC0415 - torch

    options = ContestOptions(
        workloads=tuple(args.workloads),
        rounds=args.rounds or (_QUICK_ROUNDS if args.quick else _ROUNDS),
        requests_per_slot=args.requests_per_slot,
        is_quick=args.quick,
        cache=args.cache or default_cache(),
        seed=args.seed,
        configurations=tuple(args.configurations),
    )
    wanted = [contender for contender in contenders() if contender.name in args.contenders]
    report = asyncio.run(_race(Contest(wanted, options)))
    raced: list[Precision] = [p for p in PRECISIONS if our_name(p) in args.contenders]
    report = replace(report, rooflines=_rooflines(raced, options), machine=describe())
    print(as_table(report))
    return report.as_json()


def _rooflines(
    precisions: Sequence[Precision], options: ContestOptions
) -> dict[Precision, dict[Workload, float]]:
    """Measure what this machine could do at best with the raced requests, at each of our precisions."""
    from tidemill_bench.step.machine import measure_machine, quantized_floor  # noqa: PLC0415 - torch
    from tidemill_bench.step.roofline import workload_rates  # noqa: PLC0415

    if not precisions:
        return {}
    measured = measure_machine()
    floors = {p: measured if p == "bf16" else quantized_floor(measured, p) for p in precisions}
    return {
        precision: workload_rates(
            floor, options.workloads, seeds=options.seeds, num_requests=options.num_requests
        )
        for precision, floor in floors.items()
        if floor is not None
    }


async def _race(contest: Contest) -> RaceReport:
    """Race; told to terminate, end everything that was started first."""
    racing = asyncio.ensure_future(contest.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, racing.cancel)
    return await racing


def default_cache() -> Path:
    """Return where peers are kept: TIDEMILL_CACHE/peers, or below the home folder."""
    root = os.environ.get("TIDEMILL_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "tidemill") / "peers"
