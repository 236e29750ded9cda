"""`tidemill-bench load`: flags in, a table and one JSON object out."""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import replace
from pathlib import Path

from tidemill_bench.arguments import UsageError, positive
from tidemill_bench.load.client import Endpoint, knows_ignore_eos, run_load
from tidemill_bench.load.records import Record, write_records
from tidemill_bench.load.report import as_table, summarize
from tidemill_bench.load.workload import (
    FIRST_PLAIN_TOKEN_ID,
    TRACE_PREFIX,
    WORKLOADS,
    PlannedRequest,
    TraceCut,
    at_poisson_times,
    plan_requests,
    plan_trace,
)
from tidemill_bench.smollm2 import VOCAB_SIZE

REQUESTS_PER_SLOT = 8
_OPEN_LOOP_REQUESTS = 256


def add_arguments(load: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    load.add_argument("--url", default="http://127.0.0.1:8000/v1", help="base URL, ending in /v1")
    load.add_argument("--model", required=True)
    load.add_argument("--api", choices=["completions", "chat"], default="completions")
    load.add_argument("--workload", choices=WORKLOADS, default="uniform")
    arrivals = load.add_mutually_exclusive_group()
    arrivals.add_argument("--concurrency", type=positive, help="closed loop with so many workers; default 16")
    arrivals.add_argument("--rate", type=float, help="open loop: Poisson arrivals, so many a second")
    load.add_argument("--requests", type=positive, help="default: 8 per slot; 256 in an open loop")
    load.add_argument("--stretch", type=float, default=1.0, help="a trace's time is multiplied by this")
    load.add_argument("--max-total-tokens", type=positive, help="leave a trace's longer requests out")
    load.add_argument("--ignore-eos", choices=["auto", "on", "off"], default="auto")
    load.add_argument("--timeout", type=float, default=600.0, help="seconds for one request")
    load.add_argument(
        "--vocab-size", type=positive, default=VOCAB_SIZE, help="token ids are drawn below this"
    )
    load.add_argument("--seed", type=int, default=0)
    load.add_argument("--records", type=Path, metavar="FILE", help="write a line of JSON for each request")
    load.add_argument("--out", type=Path, metavar="FOLDER", help="write plots here")


def run(args: argparse.Namespace) -> tuple[dict[str, object], int]:
    """Run the load; return the figures and the exit code, 1 where any request failed.

    Raises UsageError for flags that can't be used, LoadError where the server can't be.
    """
    if args.vocab_size <= FIRST_PLAIN_TOKEN_ID:
        raise UsageError(
            f"--vocab-size {args.vocab_size} is too small: ids from {FIRST_PLAIN_TOKEN_ID} on are drawn"
        )
    concurrency, arrivals = _arrivals(args)
    requests = _plan(args, concurrency)
    endpoint = Endpoint(
        base_url=args.url.rstrip("/"),
        model=args.model,
        api=args.api,
        api_key=os.environ.get("OPENAI_API_KEY"),
        ignores_eos=args.ignore_eos != "off",
        timeout_seconds=args.timeout,
    )
    records = asyncio.run(_send(endpoint, requests, concurrency, is_asking=args.ignore_eos == "auto"))
    report = summarize(records, args.workload, arrivals)
    print(as_table(report))
    if args.records:
        write_records(records, args.records)
    if args.out:
        from tidemill_bench.load.plots import write_plots  # noqa: PLC0415 - matplotlib

        print(f"wrote {write_plots(records, f'{args.workload}, {arrivals}', args.out)}")
    return report.as_json(), 1 if report.num_errors else 0


async def _send(
    endpoint: Endpoint, requests: list[PlannedRequest], concurrency: int | None, *, is_asking: bool
) -> list[Record]:
    if is_asking:
        endpoint = replace(endpoint, ignores_eos=await knows_ignore_eos(endpoint))
        if not endpoint.ignores_eos:
            print("the server does not take ignore_eos: outputs may be shorter than asked for")
    return await run_load(endpoint, requests, concurrency)


def _arrivals(args: argparse.Namespace) -> tuple[int | None, str]:
    """Return the concurrency, None in an open loop, and how to call it."""
    if args.rate is not None:
        if args.rate <= 0:
            raise UsageError(f"--rate {args.rate:g} is not a positive number")
        return None, f"Poisson arrivals at {args.rate:g}/s"
    if args.workload.startswith(TRACE_PREFIX) and args.concurrency is None:
        return None, f"at the trace's times x {args.stretch:g}"
    concurrency = args.concurrency or 16
    return concurrency, f"closed loop, concurrency {concurrency}"


def _plan(args: argparse.Namespace, concurrency: int | None) -> list[PlannedRequest]:
    if args.workload.startswith(TRACE_PREFIX):
        cut = TraceCut(
            stretch=args.stretch, max_requests=args.requests, max_total_tokens=args.max_total_tokens
        )
        requests = plan_trace(args.workload, cut)
    else:
        default = _OPEN_LOOP_REQUESTS if concurrency is None else REQUESTS_PER_SLOT * concurrency
        requests = plan_requests(args.workload, args.requests or default, args.vocab_size, args.seed)
    return requests if args.rate is None else at_poisson_times(requests, args.rate, args.seed)
