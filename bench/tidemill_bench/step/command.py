"""`tidemill-bench step`: what a step is made of, what it could be at best, and what HTTP adds."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from tidemill_bench.race.contender import WORKLOADS
from tidemill_bench.step.http_cost import HttpCost, measure_http_cost
from tidemill_bench.step.machine import describe, measure_machine
from tidemill_bench.step.roofline import MachineFloor, workload_rates
from tidemill_bench.step.split import StepSplit, split_step


def run(args: argparse.Namespace) -> dict[str, object]:
    """Measure, print and return the figures."""
    print(describe())
    floor = measure_machine()
    print(floor_lines(floor))
    splits = []
    for num_rows in args.rows:
        split = split_step(args.model, num_rows, args.context, args.steps)
        splits.append(split)
        print(split_lines(split, floor.step(num_rows, args.context)))
    http = measure_http_cost(args.model, args.requests) if args.http else None
    if http is not None:
        print(http_lines(http))
    return {
        "machine": describe(),
        "steps": [
            asdict(split) | {"roofline_seconds": floor.step(split.num_rows, split.context)}
            for split in splits
        ],
        "layer_seconds": floor.layer_seconds,
        "head_seconds": floor.head_seconds,
        "best_paths": floor.best_paths,
        "bytes_per_second": floor.bytes_per_second,
        "flop_per_second": floor.flop_per_second,
        "roofline_tokens_per_second": workload_rates(floor, WORKLOADS),
        "http": None if http is None else asdict(http) | {"cost": http.cost},
    }


def floor_lines(floor: MachineFloor) -> str:
    """Lay out what the machine can do."""
    counts = "".join(f"{rows:>8}" for rows in floor.layer_seconds)
    layers = "".join(f"{1e3 * seconds:8.2f}" for seconds in floor.layer_seconds.values())
    heads = "".join(f"{1e3 * seconds:8.2f}" for seconds in floor.head_seconds.values())
    paths = ", ".join(f"{rows} {path}" for rows, path in floor.best_paths.items())
    rates = ", ".join(f"{name} {rate:.0f}" for name, rate in workload_rates(floor, WORKLOADS).items())
    return "\n".join(
        [
            f"tokens         {counts}",
            f"all linears, ms{layers}",
            f"head, ms       {heads}",
            f"fastest: {paths}",
            f"memory {floor.bytes_per_second / 1e9:.1f} GB/s, "
            f"matrices {floor.flop_per_second / 1e12:.2f} TFLOP/s",
            f"roofline, tok/s: {rates}",
        ]
    )


def split_lines(split: StepSplit, least: float) -> str:
    """Lay out one step."""
    lines = [
        f"{split.num_rows} requests decode at context {split.context}: {1e3 * split.total:.2f} ms a step, "
        f"roofline {1e3 * least:.2f} ms ({least / split.total:.0%})"
    ]
    for name, seconds in sorted(split.parts.items(), key=lambda item: -item[1]):
        lines.append(f"  {name:<16} {1e3 * seconds:8.3f} ms {seconds / split.total:6.1%}")
    lines.append(f"  {'IPC, beside it':<16} {1e3 * split.ipc:8.3f} ms {split.ipc / split.total:6.1%}")
    return "\n".join(lines)


def http_lines(cost: HttpCost) -> str:
    """Lay out what HTTP and the second process cost."""
    return (
        f"uniform at concurrency {cost.concurrency}: {cost.engine_tokens_per_second:.1f} tok/s in the core "
        f"alone, {cost.http_tokens_per_second:.1f} over HTTP: {cost.cost:.1%} less "
        f"(rounds {', '.join(f'{ratio:.3f}' for ratio in cost.ratios)})\n"
        f"CPU seconds for 1,000 tokens: core {1e3 * cost.core_seconds_per_token:.2f}, "
        f"API {1e3 * cost.api_seconds_per_token:.2f}, client {1e3 * cost.client_seconds_per_token:.2f}"
    )
