"""What a load run came to: percentiles and rates from per-request records. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Record:
    """One finished request; seconds on one monotonic clock."""

    index: int
    start_seconds: float
    end_seconds: float
    chunk_seconds: tuple[float, ...]
    prompt_tokens: int
    output_tokens: int
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """A distribution in seconds; all zero where nothing was measured."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """Figures of one run. Rates count successful requests over the wall time of the whole run."""

    workload: str
    concurrency: int
    num_requests: int
    num_errors: int
    wall_seconds: float
    requests_per_second: float
    prompt_tokens_per_second: float
    output_tokens_per_second: float
    ttft_seconds: Percentiles
    itl_seconds: Percentiles
    e2e_seconds: Percentiles
    first_error: str | None = field(default=None)

    def as_json(self) -> dict[str, object]:
        """Return plain values for `json.dumps`."""
        return asdict(self)


def summarize(records: Sequence[Record], workload: str, concurrency: int) -> LoadReport:
    """Reduce the records of one run.

    The inter-token latency of a request is (last chunk - first chunk) / (output tokens - 1): a chunk may hold
    several tokens.
    """
    good = [r for r in records if r.error is None and r.chunk_seconds]
    bad = [r for r in records if r.error is not None]
    wall = max((r.end_seconds for r in records), default=0.0) - min(
        (r.start_seconds for r in records), default=0.0
    )
    rate = 1.0 / wall if wall > 0 else 0.0
    return LoadReport(
        workload=workload,
        concurrency=concurrency,
        num_requests=len(records),
        num_errors=len(bad),
        wall_seconds=wall,
        requests_per_second=len(good) * rate,
        prompt_tokens_per_second=sum(r.prompt_tokens for r in good) * rate,
        output_tokens_per_second=sum(r.output_tokens for r in good) * rate,
        ttft_seconds=_percentiles([r.chunk_seconds[0] - r.start_seconds for r in good]),
        itl_seconds=_percentiles(
            [
                (r.chunk_seconds[-1] - r.chunk_seconds[0]) / (r.output_tokens - 1)
                for r in good
                if r.output_tokens > 1
            ]
        ),
        e2e_seconds=_percentiles([r.end_seconds - r.start_seconds for r in good]),
        first_error=bad[0].error if bad else None,
    )


def as_table(report: LoadReport) -> str:
    """Lay the report out for a terminal, latencies in milliseconds."""
    rows = [
        f"{report.workload}: {report.num_requests} requests at concurrency {report.concurrency}, "
        f"{report.num_errors} errors, {report.wall_seconds:.1f} s",
        f"output {report.output_tokens_per_second:.1f} tok/s   "
        f"prompt {report.prompt_tokens_per_second:.1f} tok/s   {report.requests_per_second:.2f} requests/s",
        f"{'ms':>6} {'mean':>9} {'p50':>9} {'p90':>9} {'p99':>9}",
    ]
    for name, p in (("TTFT", report.ttft_seconds), ("ITL", report.itl_seconds), ("E2E", report.e2e_seconds)):
        rows.append(f"{name:>6} {p.mean * 1e3:9.1f} {p.p50 * 1e3:9.1f} {p.p90 * 1e3:9.1f} {p.p99 * 1e3:9.1f}")
    if report.first_error:
        rows.append(f"first error: {report.first_error}")
    return "\n".join(rows)


def _percentiles(values: Sequence[float]) -> Percentiles:
    if not values:
        return Percentiles()
    p50, p90, p99 = (float(x) for x in np.percentile(values, [50, 90, 99]))
    return Percentiles(mean=float(np.mean(values)), p50=p50, p90=p90, p99=p99)
