"""Pictures of a policy report, as SVG files; needs matplotlib, which nothing else here does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill_bench.figures import Figures

if TYPE_CHECKING:
    from tidemill_bench.policies import Row
    from tidemill_bench.policies_report import PolicyReport

Metric = tuple[str, Callable[[Figures], float]]
BARS: tuple[Metric, ...] = (
    ("output tokens/s", lambda f: f.output_tokens_per_second),
    ("P50 latency, s", lambda f: f.e2e_p50),
    ("P99 latency, s", lambda f: f.e2e_p99),
    ("P99 TTFT, s", lambda f: f.ttft_p99),
    ("P50 ITL, s", lambda f: f.itl_p50),
    ("effective batch", lambda f: f.effective_batch),
    ("fairness (Jain)", lambda f: f.fairness),
)


def write_plots(report: PolicyReport, folder: Path) -> list[Path]:
    """Write all pictures and return where they are."""
    import matplotlib as mpl  # noqa: PLC0415 - heavy, and only wanted where pictures are

    mpl.use("svg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    written = [_bars(plt, report.rows, folder / "shapes.svg")]
    written.append(_losses(plt, report, folder / "losses.svg"))
    written.append(_goodput(plt, report, folder / "goodput.svg"))
    if report.sweep:
        written.append(_sweep(plt, report.sweep, folder / "throughput_latency.svg"))
    if report.traces:
        written.append(_bars(plt, report.traces, folder / "traces.svg"))
    return written


def _bars(pyplot: Any, rows: Sequence[Row], path: Path) -> Path:
    """Draw a panel per metric, a group of bars per load, a bar per engine."""
    loads = list(dict.fromkeys(row.load for row in rows))
    engines = list(dict.fromkeys(row.engine for row in rows))
    figure, panels = pyplot.subplots(len(BARS), 1, figsize=(8, 2.2 * len(BARS)), layout="constrained")
    width = 0.8 / len(engines)
    for panel, (name, metric) in zip(panels, BARS, strict=True):
        for place, engine in enumerate(engines):
            values = {row.load: metric(row.figures) for row in rows if row.engine == engine}
            xs = [index + place * width for index, load in enumerate(loads) if load in values]
            panel.bar(xs, [values[load] for load in loads if load in values], width, label=engine)
        panel.set_ylabel(name)
        panel.set_xticks([index + 0.4 - width / 2 for index in range(len(loads))], loads)
        if name.endswith(", s"):
            panel.set_yscale("log")
    _legend_above(figure, panels[0])
    return _save(pyplot, figure, path)


def _losses(pyplot: Any, report: PolicyReport, path: Path) -> Path:
    """Draw for each shape how the static scheduler's time divides."""
    figure, panel = pyplot.subplots(figsize=(6, 3), layout="constrained")
    shapes = list(report.losses)
    lefts = [0.0] * len(shapes)
    for name in ("padding", "barrier", "reservation"):
        widths = [report.losses[shape].shares()[name] for shape in shapes]
        panel.barh(shapes, widths, left=lefts, label=name)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    panel.barh(shapes, [1.0 - left for left in lefts], left=lefts, label="work", color="lightgrey")
    panel.set_xlabel("share of the static scheduler's time")
    panel.legend(fontsize="small", ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return _save(pyplot, figure, path)


def _goodput(pyplot: Any, report: PolicyReport, path: Path) -> Path:
    """Draw the highest rate that keeps the SLO, by shape and engine."""
    figure, panels = pyplot.subplots(1, len(report.goodput), figsize=(9, 3), layout="constrained")
    for panel, (shape, rates) in zip(panels, report.goodput.items(), strict=True):
        panel.bar(range(len(rates)), list(rates.values()))
        panel.set_xticks(range(len(rates)), list(rates), rotation=30, ha="right", fontsize="small")
        panel.set_title(f"{shape}: goodput, requests/s", fontsize="medium")
    return _save(pyplot, figure, path)


def _sweep(pyplot: Any, rows: Sequence[Row], path: Path) -> Path:
    """Draw latency over throughput, a line per engine, as the rate of arrivals grows."""
    figure, panels = pyplot.subplots(1, 3, figsize=(12, 4), layout="constrained")
    metrics: tuple[Metric, ...] = (
        ("P50 latency, s", lambda f: f.e2e_p50),
        ("P99 latency, s", lambda f: f.e2e_p99),
        ("P99 TTFT, s", lambda f: f.ttft_p99),
    )
    for panel, (name, metric) in zip(panels, metrics, strict=True):
        for engine in dict.fromkeys(row.engine for row in rows):
            mine = [row.figures for row in rows if row.engine == engine]
            tokens = [f.output_tokens_per_second for f in mine]
            panel.plot(tokens, [metric(f) for f in mine], "o-", label=engine, alpha=0.7, markersize=4)
        panel.set_xlabel("output tokens/s")
        panel.set_ylabel(name)
        panel.set_yscale("log")
    _legend_above(figure, panels[0])
    return _save(pyplot, figure, path)


def _legend_above(figure: Any, panel: Any) -> None:
    """Name the engines once for all panels, where no bar or line can lie."""
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", fontsize="small", ncols=4)


def _save(pyplot: Any, figure: Any, path: Path) -> Path:
    figure.savefig(path)
    pyplot.close(figure)
    return path
