"""From the runs of a race to ratios with their spread, a table, one JSON object, and what is not met.

Pure: runs in, text and numbers out. A ratio is ours over a peer's in the same round; the figure is the median
over the rounds, the spread its least and most.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from tidemill_bench.race.contender import WORKLOADS, Precision, Result, Workload, our_name

OPPONENTS = {
    "vllm-cpu": "tidemill bf16",
    "llama.cpp": "tidemill int8",
    "llama.cpp Q4_0": "tidemill int4",
    "transformers continuous": "tidemill bf16",
    "transformers static": "tidemill bf16",
}
"""Each peer, and which of ours computes with comparable weights."""
_BATCHED = 3.0
_LLAMA_BATCHED = 8.0
EXPECTED: dict[str, dict[Workload, float]] = {
    "vllm-cpu": {
        "single": 2.0,
        "uniform": _BATCHED,
        "medium": _BATCHED,
        "extreme": _BATCHED,
        "prefix": _BATCHED,
        "prefill": 2.0,
    },
    "llama.cpp": {"single": 1.2, "uniform": _LLAMA_BATCHED},
    "llama.cpp Q4_0": {"single": 1.2, "uniform": _LLAMA_BATCHED},
}
EXPECTED_ROOFLINE_FRACTION = 0.75


@dataclass(frozen=True, kw_only=True)
class Run:
    """One contender's turn in a round."""

    contender: str
    workload: Workload
    round: int
    result: Result


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A figure over the rounds."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(values: list[float]) -> Spread:
        """Return median and ends of one value or more."""
        return Spread(median=statistics.median(values), least=min(values), most=max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.least:.2f}-{self.most:.2f})"


@dataclass(frozen=True, kw_only=True)
class RaceReport:
    """All runs, the configuration chosen for each contender and workload, who could not take part and why."""

    runs: tuple[Run, ...]
    configurations: Mapping[str, Mapping[Workload, str]]
    failures: Mapping[str, str]
    rooflines: Mapping[Precision, Mapping[Workload, float]] = field(default_factory=dict)
    """Tokens a second that this machine could do at best."""
    machine: str = ""

    def ratios(self, peer: str, figure: Callable[[Run], float | None]) -> dict[Workload, Spread]:
        """Return a figure of ours over a peer's, by workload, from the rounds in which both ran."""
        values = {(run.contender, run.workload, run.round): figure(run) for run in self.runs}
        found: dict[Workload, Spread] = {}
        for workload in WORKLOADS:
            ratios = []
            for contender, of_workload, number in values:
                if (contender, of_workload) == (peer, workload):
                    mine, theirs = (
                        values.get((OPPONENTS[peer], workload, number)),
                        values[peer, workload, number],
                    )
                    if mine is not None and theirs:
                        ratios.append(mine / theirs)
            if ratios:
                found[workload] = Spread.of(ratios)
        return found

    def rate_ratios(self, peer: str) -> dict[Workload, Spread]:
        """Return our tokens a second over a peer's."""
        return self.ratios(peer, lambda run: run.result.rate(run.workload))

    def median_rate(self, contender: str, workload: Workload) -> float | None:
        """Return a contender's median tokens a second; None where it did not run."""
        rates = [
            run.result.rate(workload)
            for run in self.runs
            if (run.contender, run.workload) == (contender, workload)
        ]
        return statistics.median(rates) if rates else None

    def roofline_fractions(self, precision: Precision = "bf16") -> dict[Workload, float]:
        """Return which share of this machine's roofline our engine reaches at a precision."""
        fractions = {}
        for workload, roof in self.rooflines.get(precision, {}).items():
            rate = self.median_rate(our_name(precision), workload)
            if rate is not None and roof:
                fractions[workload] = rate / roof
        return fractions

    def unmet(self) -> list[str]:
        """Return a sentence for each expectation that was raced and not met."""
        fractions = self.roofline_fractions()
        found = []
        for peer, expected in EXPECTED.items():
            ratios = self.rate_ratios(peer)
            for workload, least in expected.items():
                if workload not in ratios or ratios[workload].median >= least:
                    continue
                near = peer == "vllm-cpu" and fractions.get(workload, 0.0) >= EXPECTED_ROOFLINE_FRACTION
                if not near:
                    found.append(f"{workload} over {peer}: {ratios[workload]}, expected {least:g}")
        for name, figure in _LATENCIES.items():
            for workload, spread in self.ratios("vllm-cpu", figure).items():
                if spread.median >= 1.0:
                    found.append(f"{workload}: {name} is {spread} times vllm-cpu's")
        errors = [run for run in self.runs if run.result.num_errors]
        found += [f"{run.workload}: {run.contender} had {run.result.num_errors} errors" for run in errors]
        return found

    def as_json(self) -> dict[str, object]:
        """Return the figures that others read, then everything else."""
        peers = {peer: self.rate_ratios(peer) for peer in OPPONENTS}
        return {
            "ratio": {peer: {w: _round(s.median) for w, s in of.items()} for peer, of in peers.items()},
            "roofline_fraction": {w: _round(share) for w, share in self.roofline_fractions().items()},
            "ratio_spread": {
                peer: {w: [_round(s.least), _round(s.most)] for w, s in of.items()}
                for peer, of in peers.items()
            },
            "p99_ratio_to_vllm_cpu": {
                name: {w: _round(s.median) for w, s in self.ratios("vllm-cpu", figure).items()}
                for name, figure in _LATENCIES.items()
            },
            "roofline_fraction_quantized": {
                precision: {w: _round(share) for w, share in self.roofline_fractions(precision).items()}
                for precision in self.rooflines
                if precision != "bf16"
            },
            "roofline_tokens_per_second": {
                precision: {w: _round(rate) for w, rate in of.items()}
                for precision, of in self.rooflines.items()
            },
            "configurations": {name: dict(of) for name, of in self.configurations.items()},
            "did_not_take_part": dict(self.failures),
            "unmet": self.unmet(),
            "machine": self.machine,
            "runs": [
                {"contender": run.contender, "workload": run.workload, "round": run.round}
                | asdict(run.result)
                for run in self.runs
            ],
        }


_LATENCIES: dict[str, Callable[[Run], float | None]] = {
    "P99 TTFT": lambda run: run.result.ttft_p99_seconds,
    "P99 ITL": lambda run: run.result.itl_p99_seconds,
}


def as_table(report: RaceReport) -> str:
    """Lay a race out for a terminal."""
    lines = [report.machine]
    lines.append(
        f"{'workload':<9} {'contender':<24} {'tok/s':>8} {'P99 TTFT':>9} {'P99 ITL':>8}  configuration"
    )
    names = list(dict.fromkeys(run.contender for run in report.runs))
    for workload in dict.fromkeys(run.workload for run in report.runs):
        for name in names:
            rate = report.median_rate(name, workload)
            if rate is not None:
                latencies = [_median(report, (name, workload), figure) for figure in _LATENCIES.values()]
                shown = " ".join(f"{text:>{width}}" for text, width in zip(latencies, (9, 8), strict=True))
                label = report.configurations[name][workload]
                lines.append(f"{workload:<9} {name:<24} {rate:8.1f} {shown}  {label}")
    for precision, rates in report.rooflines.items():
        shares = ", ".join(
            f"{workload} {rates[workload]:.0f} tok/s ({share:.0%} reached)"
            for workload, share in report.roofline_fractions(precision).items()
        )
        if shares:
            lines.append(f"roofline of this machine in {precision}: {shares}")
    for peer, mine in OPPONENTS.items():
        ratios = report.rate_ratios(peer)
        if ratios:
            shown = "  ".join(f"{workload} {spread}" for workload, spread in ratios.items())
            lines.append(f"{mine} over {peer}: {shown}")
    lines += [f"{name} did not take part: {reason}" for name, reason in report.failures.items()]
    lines += [f"NOT MET: {sentence}" for sentence in report.unmet()]
    return "\n".join(lines)


def _median(report: RaceReport, who: tuple[str, Workload], figure: Callable[[Run], float | None]) -> str:
    values = [figure(run) for run in report.runs if (run.contender, run.workload) == who]
    known = [value for value in values if value is not None]
    return f"{1e3 * statistics.median(known):.0f} ms" if known else "-"


def _round(value: float) -> float:
    return float(f"{value:.4g}")
