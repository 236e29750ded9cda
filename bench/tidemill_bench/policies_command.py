"""`tidemill-bench policies`: its flags, and what runs by them. Prints tables, returns the figures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import UsageError, positive

if TYPE_CHECKING:
    from .step_time import StepTime


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    parser.add_argument("--quick", action="store_true", help="fewer engines and requests: under a minute")
    parser.add_argument(
        "--engine",
        action="store_true",
        help="run the shapes on the real CPU runner instead; about 20 minutes",
    )
    shapes = ["alike", "medium", "extreme"]
    parser.add_argument("--shapes", nargs="+", default=shapes, choices=shapes, help="with --engine")
    parser.add_argument("--requests", type=positive, default=256, help="with --engine: of each shape")
    parser.add_argument(
        "--outside-requests",
        type=positive,
        default=64,
        metavar="N",
        help="with --engine: how many of them transformers' generate and the dynamic scheduler get",
    )
    parser.add_argument("--step-time", type=Path, metavar="FILE", help="constants by `fit`; default: ours")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write plots here")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=positive, help="processes; default: one per core")


def run(args: argparse.Namespace) -> dict[str, object]:
    """Run what the flags ask for; a file of constants that can't be read raises UsageError."""
    from .step_time import load_step_time  # noqa: PLC0415 - per command

    try:
        step_time = load_step_time(args.step_time)
    except (OSError, ValueError) as bad:
        raise UsageError(f"--step-time: {bad}") from bad
    return _run_engine(args, step_time) if args.engine else _run_simulator(args, step_time)


def _run_simulator(args: argparse.Namespace, step_time: StepTime) -> dict[str, object]:
    from .policies import PolicyOptions  # noqa: PLC0415 - per command
    from .policies_report import as_table  # noqa: PLC0415
    from .policies_run import run_all  # noqa: PLC0415

    options = PolicyOptions(step_time=step_time, is_quick=args.quick, seed=args.seed, workers=args.workers)
    report = run_all(options)
    print(as_table(report))
    if args.out:
        from .plots import write_plots  # noqa: PLC0415 - matplotlib

        for path in write_plots(report, args.out):
            print(f"wrote {path}")
    return report.as_json()


def _run_engine(args: argparse.Namespace, step_time: StepTime) -> dict[str, object]:
    from .real_engine import RaceOptions, race  # noqa: PLC0415 - torch

    options = RaceOptions(
        shapes=tuple(args.shapes),
        num_requests=args.requests,
        num_outside=args.outside_requests,
        step_time=step_time,
        seed=args.seed,
    )
    result = race(options)
    print("\n".join(f"NOT MET: {sentence}" for sentence in result.unmet()))
    return result.as_json()
