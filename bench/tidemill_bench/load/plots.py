"""Pictures of a load run: distributions of the latencies, and tokens and requests over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tidemill_bench.load.records import Record
from tidemill_bench.load.report import gaps, latencies, ttfts

_BINS = 60


def write_plots(records: Sequence[Record], title: str, folder: Path) -> Path:
    """Write one SVG with all panels and return where it is."""
    import matplotlib as mpl  # noqa: PLC0415 - heavy, and only wanted where pictures are

    mpl.use("svg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    figure, panels = plt.subplots(2, 3, figsize=(12, 6.5), layout="constrained")
    figure.suptitle(title)
    for panel, name, values in zip(
        panels[0],
        ("TTFT", "gap between chunks", "end to end"),
        (ttfts(records), gaps(records), latencies(records)),
        strict=True,
    ):
        _distribution(panel, name, values)
    good = [record for record in records if record.is_good]
    if good:
        _over_time(panels[1], good)
    path = folder / "load.svg"
    figure.savefig(path)
    plt.close(figure)
    return path


def _distribution(panel: Any, name: str, values: Sequence[float]) -> None:
    """Draw the share of values up to each length, with P50 and P99 marked."""
    panel.set_xlabel(f"{name}, ms")
    panel.set_ylabel("share of all")
    if not values:
        return
    ordered = 1e3 * np.sort(np.asarray(values))
    panel.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered))
    for percent, style in ((50, ":"), (99, "--")):
        where = float(np.percentile(ordered, percent))
        panel.axvline(where, color="grey", linestyle=style, linewidth=1, label=f"p{percent} {where:.1f} ms")
    panel.legend(fontsize="small")
    panel.set_xlim(left=0)


def _over_time(panels: Any, records: Sequence[Record]) -> None:
    """Draw output tokens a second, requests in flight, and each request's TTFT, over the run."""
    end = max(record.end_seconds for record in records)
    edges = np.linspace(0.0, end, _BINS + 1)
    tokens = np.concatenate([record.chunk_seconds for record in records])
    weights = np.concatenate(
        [np.full(len(r.chunk_seconds), r.output_tokens / len(r.chunk_seconds)) for r in records]
    )
    counts, _ = np.histogram(tokens, edges, weights=weights)
    panels[0].stairs(counts / np.diff(edges), edges)
    panels[0].set_ylabel("output tokens/s")
    starts = np.sort([record.sent_seconds for record in records])
    ends = np.sort([record.end_seconds for record in records])
    times = np.linspace(0.0, end, 4 * _BINS)
    panels[1].plot(times, np.searchsorted(starts, times) - np.searchsorted(ends, times))
    panels[1].set_ylabel("requests in flight")
    panels[2].plot([r.due_seconds for r in records], [1e3 * x for x in ttfts(records)], ".", markersize=3)
    panels[2].set_ylabel("TTFT, ms")
    for panel in panels:
        panel.set_xlabel("seconds of the run")
        panel.set_ylim(bottom=0)
