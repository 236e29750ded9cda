"""Who takes part in a race, and what a run of a workload came to, whoever ran it. Pure.

Knows names, configurations and figures. Does not know processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tidemill_bench.load.report import LoadReport

Precision = Literal["bf16", "int8", "int4"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Workload = Literal["single", "uniform", "medium", "extreme", "prefix", "prefill"]
WORKLOADS: tuple[Workload, ...] = get_args(Workload)
CONCURRENCY = 64
QUICK_REQUESTS = {"single": 4, "uniform": 128, "medium": 64, "extreme": 32, "prefix": 128, "prefill": 16}
"""A minute at most for a server that does 150 output tokens, or 1,000 prompt tokens, a second."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run: rates in tokens a second, latencies in seconds (None where they can't be seen)."""

    output_tokens_per_second: float
    prompt_tokens_per_second: float
    ttft_p99_seconds: float | None = None
    itl_p99_seconds: float | None = None
    num_errors: int = 0
    first_error: str | None = None

    def rate(self, workload: Workload) -> float:
        """Return what the workload is about: prompt tokens for prefill, else output tokens."""
        if workload == "prefill":
            return self.prompt_tokens_per_second
        return self.output_tokens_per_second


def result_of(report: LoadReport) -> Result:
    """Return what a race looks at in a load report."""
    has_gaps = report.itl_seconds.p99 > 0
    return Result(
        output_tokens_per_second=report.output_tokens_per_second,
        prompt_tokens_per_second=report.prompt_tokens_per_second,
        ttft_p99_seconds=report.ttft_seconds.p99,
        itl_p99_seconds=report.itl_seconds.p99 if has_gaps else None,
        num_errors=report.num_errors,
        first_error=report.first_error,
    )


def our_name(precision: Precision) -> str:
    """Return how our engine is called at a precision."""
    return f"tidemill {precision}"


def concurrency_of(workload: Workload) -> int:
    """Return how many requests are in flight."""
    return 1 if workload == "single" else CONCURRENCY


def num_requests_of(workload: Workload, requests_per_slot: int, *, is_quick: bool) -> int:
    """Return how many requests a run has."""
    if is_quick:
        return QUICK_REQUESTS[workload]
    return requests_per_slot * concurrency_of(workload)
