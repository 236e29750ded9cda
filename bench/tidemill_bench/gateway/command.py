"""The command `gateway`: its flags, its table, its JSON."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from tidemill_bench.gateway.cost import CostPlan, measure_cost, measure_memory
from tidemill_bench.gateway.fairness import measure_fairness
from tidemill_bench.gateway.prefix import PrefixPlan, measure_prefix

MAX_ADDED_MS = 1.0
MAX_ADDED_RATIO = 1.5
MAX_GROWTH_RATIO = 1.05
MIN_HIT_RATIO_OVER_ROUND_ROBIN = 2.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second")
    parser.add_argument("--rounds", type=int, default=9, help="windows of each path")
    parser.add_argument("--streams", type=int, default=2000, help="streams held open")
    parser.add_argument(
        "--only", choices=("cost", "memory", "prefix", "fairness"), help="measure one of the four"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, and give the figures."""
    plan = CostPlan(rate=args.rate, num_rounds=args.rounds, num_streams=args.streams)
    figures: dict[str, Any] = {}
    if args.only in (None, "cost"):
        figures["cost"] = asyncio.run(measure_cost(plan))
    if args.only in (None, "memory"):
        figures["memory"] = asyncio.run(measure_memory(plan))
    if args.only in (None, "prefix"):
        figures["prefix"] = asyncio.run(measure_prefix(PrefixPlan()))
    if args.only in (None, "fairness"):
        figures["fairness"] = asyncio.run(measure_fairness())
    return figures


def is_within_promises(figures: dict[str, Any]) -> bool:
    """Say whether what was measured is within the promises."""
    cost, memory = figures.get("cost"), figures.get("memory")
    is_cheap = cost is None or (
        cost["added_p50_ms"]["gateway"] <= MAX_ADDED_MS and cost["added_ratio"] <= MAX_ADDED_RATIO
    )
    is_flat = memory is None or (
        memory["growth_ratio"] <= MAX_GROWTH_RATIO and memory["streams_alive_at_end"] == memory["streams"]
    )
    prefix = figures.get("prefix")
    is_reusing = prefix is None or prefix["hit_ratio_over_round_robin"] >= MIN_HIT_RATIO_OVER_ROUND_ROBIN
    return is_cheap and is_flat and is_reusing
