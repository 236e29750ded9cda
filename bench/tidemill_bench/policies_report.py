"""From the experiments' figures to a table for people, one JSON object, and what was expected but not met.

Pure: figures in, text out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from tidemill_bench.policies import (
    CONTINUOUS,
    EXPECTED_THROUGHPUT,
    LOOSE_SLO,
    STATIC,
    WIDE,
    Losses,
    Row,
)
from tidemill_bench.promises import Flood, SloGain

EXPECTED_GOODPUT = {"alike": 2.0, "medium": 4.0, "extreme": 10.0}
EXPECTED_SLO_GAIN = 20.0
EXPECTED_FLOOD_RATIO = 1.2
FIFO_WINDOW = (0.5, 0.7)


@dataclass(frozen=True, kw_only=True)
class PolicyReport:
    """Everything that was run. Rates of `goodput` are requests a second by shape and engine."""

    machine: str
    slo: str
    rows: list[Row]
    losses: dict[str, Losses]
    goodput: dict[str, dict[str, float]]
    sparse: list[Row]
    slo_gain: SloGain
    flood: Flood
    loose_goodput: dict[str, dict[str, float]] = field(default_factory=dict)
    traces: list[Row] = field(default_factory=list)
    sweep: list[Row] = field(default_factory=list)

    def throughput_ratios(self, engine: str = WIDE.name) -> dict[str, float]:
        """Return an engine's output tokens a second over the static scheduler's, by shape."""
        return {
            shape: self._throughput(shape, engine) / self._throughput(shape, STATIC.name)
            for shape in EXPECTED_THROUGHPUT
        }

    def goodput_ratios(self) -> dict[str, float]:
        """Return the continuous scheduler's goodput over the static one's, by shape."""
        return _over_static(self.goodput, CONTINUOUS.name)

    def as_json(self) -> dict[str, object]:
        """Return the figures that others read, then everything else."""
        return {
            "throughput_over_static": _rounded(self.throughput_ratios()),
            "goodput_over_static": _rounded(self.goodput_ratios()),
            "slo_gain_points": round(self.slo_gain.gain_points, 1),
            "flooded_tenant_p99_ratio": round(self.flood.ratio, 3),
            "throughput_over_static_at_32_slots": _rounded(self.throughput_ratios(CONTINUOUS.name)),
            "unmet": self.unmet(),
            "machine": self.machine,
            "slo": self.slo,
            "losses": {shape: _rounded(losses.shares()) for shape, losses in self.losses.items()},
            "goodput_requests_per_second": {s: _rounded(rates) for s, rates in self.goodput.items()},
            "loose_goodput_requests_per_second": {
                s: _rounded(rates) for s, rates in self.loose_goodput.items()
            },
            "slo_attainment": _rounded(self.slo_gain.attainment),
            "flood_seconds": asdict(self.flood),
            "rows": [
                {"load": row.load, "engine": row.engine} | row.figures.as_json()
                for row in [*self.rows, *self.sparse, *self.traces, *self.sweep]
            ],
        }

    def unmet(self) -> list[str]:
        """Return a sentence for each expectation that these figures don't meet."""
        found = []
        for what, ratios, expected in (
            ("throughput", self.throughput_ratios(), EXPECTED_THROUGHPUT),
            ("goodput", self.goodput_ratios(), EXPECTED_GOODPUT),
        ):
            for shape, least in expected.items():
                if ratios[shape] < least:
                    found.append(f"{what} over static, {shape}: {ratios[shape]:.2f}, expected {least:g}")
        fifo = self.slo_gain.attainment["fifo"]
        if not FIFO_WINDOW[0] <= fifo <= FIFO_WINDOW[1]:
            found.append(f"no rate was found where fifo attains 50-70 %: {100 * fifo:.0f} %")
        if self.slo_gain.gain_points < EXPECTED_SLO_GAIN:
            found.append(f"slo gains {self.slo_gain.gain_points:.1f} points, expected {EXPECTED_SLO_GAIN:g}")
        if self.flood.ratio > EXPECTED_FLOOD_RATIO:
            found.append(f"flooded tenant's P99: {self.flood.ratio:.2f} of its fair share's, expected <= 1.2")
        return found

    def _throughput(self, shape: str, engine: str) -> float:
        for row in self.rows:
            if (row.load, row.engine) == (shape, engine):
                return row.figures.output_tokens_per_second
        raise ValueError(f"{engine} was not run on {shape}")


def as_table(report: PolicyReport) -> str:
    """Lay the report out for a terminal."""
    parts = [f"step times: {report.machine}\nSLO: {report.slo}"]
    parts.append("All requests at once, 8 for each of 32 slots\n" + table(report.rows))
    parts.append(_losses_table(report.losses))
    parts.append(_goodput_table(report.slo, report.goodput))
    if report.loose_goodput:
        parts.append(_goodput_table(str(LOOSE_SLO), report.loose_goodput))
    if report.sweep:
        parts.append("Rising rates, medium\n" + table(report.sweep))
    if report.traces:
        parts.append(
            "Public traces, slowed down to fit this machine (xN), without prompts over 16,000 tokens\n"
            + table(report.traces)
        )
    parts.append(
        "Sparse: each request comes after the last has ended. There is nothing to batch, so continuous\n"
        "batching can't help here, and does not.\n" + table(report.sparse)
    )
    parts.append(_slo_lines(report.slo_gain))
    parts.append(_flood_lines(report.flood))
    unmet = report.unmet()
    parts.append(
        "NOT MET:\n" + "\n".join(f"  {line}" for line in unmet) if unmet else "Every expectation is met."
    )
    return "\n\n".join(parts)


def table(rows: Iterable[Row]) -> str:
    """Lay rows out: throughput, latencies in seconds, SLO, fairness, effective batch."""
    lines = [
        f"{'load':<26} {'engine':<26} {'tok/s':>7} {'e2e p50':>8} {'p99':>8} {'TTFT p50':>8} {'p99':>8} "
        f"{'ITL p50':>7} {'p99':>7} {'in SLO':>6} {'fair':>5} {'batch':>6} {'pad':>5} {'cached':>6}"
    ]
    for row in rows:
        f = row.figures
        lines.append(
            f"{row.load:<26} {row.engine:<26} {f.output_tokens_per_second:7.1f} {f.e2e_p50:8.1f} "
            f"{f.e2e_p99:8.1f} {f.ttft_p50:8.2f} {f.ttft_p99:8.2f} {f.itl_p50:7.3f} {f.itl_p99:7.3f} "
            f"{f.slo_attainment:6.0%} {f.fairness:5.2f} {f.effective_batch:6.1f} {f.padding_share:5.0%} "
            f"{f.cached_share:6.0%}"
        )
    return "\n".join(lines)


def _losses_table(losses: dict[str, Losses]) -> str:
    lines = ["Where the static scheduler's time goes, as shares of it"]
    lines.append(f"{'load':<10} {'padding':>8} {'barrier':>8} {'reservation':>12}")
    for shape, lost in losses.items():
        shares = lost.shares()
        lines.append(
            f"{shape:<10} {shares['padding']:8.1%} {shares['barrier']:8.1%} {shares['reservation']:12.1%}"
        )
    return "\n".join(lines)


def _goodput_table(slo: str, goodput: dict[str, dict[str, float]]) -> str:
    lines = [
        f"Goodput: the highest rate (requests/s, Poisson) at which 90 % keep {slo}; in brackets over static"
    ]
    for shape, rates in goodput.items():
        shown = "   ".join(
            f"{engine} {rate:.4f} ({_over_static({shape: rates}, engine)[shape]:.2f})"
            for engine, rate in rates.items()
        )
        lines.append(f"{shape:<10} {shown}")
    return "\n".join(lines)


def _over_static(goodput: dict[str, dict[str, float]], engine: str) -> dict[str, float]:
    return {
        shape: rates[engine] / rates[STATIC.name] if rates[STATIC.name] else float("inf")
        for shape, rates in goodput.items()
    }


def _slo_lines(gain: SloGain) -> str:
    shown = "   ".join(f"{policy} {share:.1%}" for policy, share in gain.attainment.items())
    return (
        f"SLO attainment at {gain.rate:.3f} requests/s, half urgent, half with ten times the SLO\n{shown}\n"
        f"slo over fifo: {gain.gain_points:+.1f} points"
    )


def _flood_lines(flood: Flood) -> str:
    known = flood.without_fairness
    without = "" if known is None else f"; {known:.1f} s where both count as one tenant"
    return (
        f"P99 latency of a quiet tenant: {flood.fair_share:.1f} s on its fair share (half the engine),\n"
        f"{flood.beside_flood:.1f} s beside a tenant that sends five times what the engine can do "
        f"({flood.ratio:.2f}){without}"
    )


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}
