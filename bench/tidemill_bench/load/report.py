"""What a load run came to: percentiles and rates from per-request records. Pure: values in, values out.

TTFT: due to first chunk. ITL: the gaps between a request's chunks, all requests together, as a reader sees
them. TPOT: (last chunk - first) / (tokens - 1) of a request, whatever a chunk holds. E2E: due to end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from tidemill_bench.load.records import Record


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """A distribution in seconds; all zero where nothing was measured."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """Figures of one run. Rates count successful requests over the wall time of the whole run."""

    workload: str
    arrivals: str
    num_requests: int
    num_errors: int
    errors_by_kind: dict[str, int]
    wall_seconds: float
    requests_per_second: float
    prompt_tokens_per_second: float
    output_tokens_per_second: float
    ttft_seconds: Percentiles
    itl_seconds: Percentiles
    tpot_seconds: Percentiles
    e2e_seconds: Percentiles
    send_lag_p99_seconds: float
    """How late the client itself was; where it is large, the client was the bottleneck."""
    first_error: str | None = field(default=None)

    def as_json(self) -> dict[str, object]:
        """Return plain values for `json.dumps`."""
        return asdict(self)


def summarize(records: Sequence[Record], workload: str, arrivals: str) -> LoadReport:
    """Reduce the records of one run; `arrivals` says how requests came, for the reader."""
    good = [r for r in records if r.is_good]
    failures = [r.failure for r in records if r.failure is not None]
    wall = max((r.end_seconds for r in records), default=0.0) - min(
        (r.sent_seconds for r in records), default=0.0
    )
    rate = 1.0 / wall if wall > 0 else 0.0
    return LoadReport(
        workload=workload,
        arrivals=arrivals,
        num_requests=len(records),
        num_errors=len(failures),
        errors_by_kind=dict(Counter(failure.kind for failure in failures)),
        wall_seconds=wall,
        requests_per_second=len(good) * rate,
        prompt_tokens_per_second=sum(r.prompt_tokens for r in good) * rate,
        output_tokens_per_second=sum(r.output_tokens for r in good) * rate,
        ttft_seconds=_percentiles(ttfts(records)),
        itl_seconds=_percentiles(gaps(records)),
        tpot_seconds=_percentiles(
            [
                (r.chunk_seconds[-1] - r.chunk_seconds[0]) / (r.output_tokens - 1)
                for r in good
                if r.output_tokens > 1
            ]
        ),
        e2e_seconds=_percentiles(latencies(records)),
        send_lag_p99_seconds=_percentiles([r.sent_seconds - r.due_seconds for r in records]).p99,
        first_error=f"{failures[0].kind}: {failures[0].message}" if failures else None,
    )


def ttfts(records: Sequence[Record]) -> list[float]:
    """Return the seconds from due to first chunk of each request that went well."""
    return [r.chunk_seconds[0] - r.due_seconds for r in records if r.is_good]


def gaps(records: Sequence[Record]) -> list[float]:
    """Return the seconds between consecutive chunks, of all requests that went well."""
    return [gap for r in records if r.is_good for gap in np.diff(r.chunk_seconds).tolist()]


def latencies(records: Sequence[Record]) -> list[float]:
    """Return the seconds from due to end of each request that went well."""
    return [r.end_seconds - r.due_seconds for r in records if r.is_good]


def as_table(report: LoadReport) -> str:
    """Lay the report out for a terminal, latencies in milliseconds."""
    rows = [
        f"{report.workload}: {report.num_requests} requests, {report.arrivals}, "
        f"{report.num_errors} errors, {report.wall_seconds:.1f} s",
        f"output {report.output_tokens_per_second:.1f} tok/s   "
        f"prompt {report.prompt_tokens_per_second:.1f} tok/s   {report.requests_per_second:.2f} requests/s",
        f"{'ms':>6} {'mean':>9} {'p50':>9} {'p90':>9} {'p95':>9} {'p99':>9}",
    ]
    for name, p in (
        ("TTFT", report.ttft_seconds),
        ("ITL", report.itl_seconds),
        ("TPOT", report.tpot_seconds),
        ("E2E", report.e2e_seconds),
    ):
        shown = " ".join(f"{1e3 * value:9.1f}" for value in (p.mean, p.p50, p.p90, p.p95, p.p99))
        rows.append(f"{name:>6} {shown}")
    if report.num_errors:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.errors_by_kind.items()))
        rows.append(f"errors: {kinds}; first: {report.first_error}")
    if report.send_lag_p99_seconds > 0.05:
        rows.append(f"the client itself was up to {report.send_lag_p99_seconds:.2f} s late (p99)")
    return "\n".join(rows)


def _percentiles(values: Sequence[float]) -> Percentiles:
    if not values:
        return Percentiles()
    p50, p90, p95, p99 = (float(x) for x in np.percentile(values, [50, 90, 95, 99]))
    return Percentiles(mean=float(np.mean(values)), p50=p50, p90=p90, p95=p95, p99=p99)
