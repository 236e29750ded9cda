"""Command line of the benchmarks: reads flags and environment, prints a table, then one JSON object."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from pathlib import Path

from .load import Endpoint, run_load
from .report import as_table, summarize
from .workload import SHAPES, plan_requests


def main() -> None:
    """Run one command; exit 1 where any request failed."""
    parser = argparse.ArgumentParser(prog="tidemill-bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    load = commands.add_parser("load", help="send a workload to an OpenAI server, closed loop")
    load.add_argument("--url", default="http://127.0.0.1:8000/v1", help="base URL, ending in /v1")
    load.add_argument("--model", required=True)
    load.add_argument("--workload", choices=sorted(SHAPES), default="uniform")
    load.add_argument("--concurrency", type=_positive, default=16)
    load.add_argument("--requests", type=_positive, help="default: 8 per slot")
    load.add_argument("--vocab-size", type=_positive, default=49152, help="token ids are drawn below this")
    load.add_argument("--seed", type=int, default=0)
    load.add_argument("--json", type=Path, metavar="FILE", help="also write the JSON object here")
    raise SystemExit(_load(parser, parser.parse_args()))


def _load(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    num_requests = args.requests or 8 * args.concurrency
    try:
        requests = plan_requests(args.workload, num_requests, args.vocab_size, args.seed)
    except ValueError as bad:
        parser.error(str(bad))
    endpoint = Endpoint(
        base_url=args.url.rstrip("/"), model=args.model, api_key=os.environ.get("OPENAI_API_KEY")
    )
    records = asyncio.run(run_load(endpoint, requests, args.concurrency))
    report = summarize(records, args.workload, args.concurrency)
    print(as_table(report))
    text = json.dumps(report.as_json())
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")
    print(text)
    return 1 if report.num_errors else 0


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


if __name__ == "__main__":
    main()
