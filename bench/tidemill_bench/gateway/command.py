"""The command `gateway`: its flags, its table, its JSON."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from tidemill_bench.gateway.cost import CostPlan, measure_cost, measure_memory

MAX_ADDED_MS = 1.0
MAX_ADDED_RATIO = 1.5
MAX_GROWTH_RATIO = 1.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second")
    parser.add_argument("--rounds", type=int, default=5, help="windows of each path")
    parser.add_argument("--streams", type=int, default=2000, help="streams held open")
    parser.add_argument("--only", choices=("cost", "memory"), help="measure one of the two")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, and give the figures."""
    plan = CostPlan(rate=args.rate, num_rounds=args.rounds, num_streams=args.streams)
    figures: dict[str, Any] = {}
    if args.only != "memory":
        figures["cost"] = asyncio.run(measure_cost(plan))
    if args.only != "cost":
        figures["memory"] = asyncio.run(measure_memory(plan))
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
    return is_cheap and is_flat
