"""A fleet report as tables for people and as a picture: attainment over GPU-hours, a panel a load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill_bench.fleet.score import front, is_on_front, mean

if TYPE_CHECKING:
    from tidemill_bench.fleet.score import Point
    from tidemill_bench.fleet.sweep import Report

COLOURS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#aa3377", "#bbbbbb", "#994455", "#004488")


def as_table(report: Report) -> str:
    """Return the figures of every policy on every load, and the savings."""
    lines = [
        f"{'load':18} {'policy':12} {'attained':>8} {'GPU-hours':>9} {'changes':>7} {'queue':>6} {'lost':>5}"
    ]
    for mine in report.ours:
        others = report.tuned_points(mine.load)
        lines.append(_row(mine, is_on_front(mine, others)))
        lines.extend(_row(p, False) for p in sorted(others, key=lambda p: p.gpu_hours))
    lines.append("* on the Pareto front of the others as tuned")
    lines.extend(["", *_savings(report)])
    if report.steady:
        changes = ", ".join(f"{p.load}: {p.scale_events}" for p in report.steady)
        lines.append(f"changes in an hour of constant load: {changes}")
    if report.note:
        lines.append(report.note)
    return "\n".join(lines)


def _row(point: Point, is_marked: bool) -> str:
    return (
        f"{point.load:18} {point.policy:12} {point.attainment:7.1%}{'*' if is_marked else ' '} "
        f"{point.gpu_hours:9.2f} {point.scale_events:7d} {point.largest_queue:6d} {point.num_failed:5d}"
    )


def _savings(report: Report) -> list[str]:
    """Return what ours saves at equal attainment, by policy and load."""
    table = report.savings()
    loads = [p.load for p in report.ours]
    lines = [
        "GPU-hours saved at our attainment, by lines between settings (-: it never attains as much)",
        f"{'':12} " + " ".join(f"{load[:12]:>12}" for load in loads) + f" {'mean':>7}",
    ]
    lines += _rows(table, loads)
    lines.append(
        f"over the best of them, {report.best_other}: {report.gpu_hours_saving:.1%}; over the best setting "
        f"of any for each load, with hindsight: {report.saving_with_hindsight:.1%}"
    )
    between = report.savings_between_curves()
    if between:
        lines.append("the same over all attainments from 80 % that both reach, ours with four settings, too")
        lines += _rows(between, loads)
    return lines


def _rows(table: dict[str, dict[str, float]], loads: list[str]) -> list[str]:
    """Return a line for each policy: its figure on each load, and their mean."""
    lines = []
    for policy, row in table.items():
        cells = [f"{row[load]:12.0%}" if load in row else f"{'-':>12}" for load in loads]
        lines.append(f"{policy:12} " + " ".join(cells) + f" {mean(row.values()):7.1%}")
    return lines


def write_plot(report: Report, path: Path) -> Path:
    """Draw a panel for each load: each policy's settings and front, tuned ones filled, ours a star."""
    import matplotlib as mpl  # noqa: PLC0415 - heavy, and only wanted where pictures are

    mpl.use("svg" if path.suffix == ".svg" else "agg")
    mpl.rcParams["svg.hashsalt"] = "tidemill"
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot as plt  # noqa: PLC0415

    columns = 3
    rows = -(-len(report.ours) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(11, 3 * rows), layout="constrained", squeeze=False)
    for panel in panels.flat[len(report.ours) :]:
        panel.set_axis_off()
    for panel, mine in zip(panels.flat, report.ours, strict=False):
        _panel(panel, report, mine)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize="small")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
    return path


def _panel(panel: Any, report: Report, mine: Point) -> None:
    for policy, colour in zip(report.policies, COLOURS, strict=False):
        points = [p for p in report.others if p.load == mine.load and p.policy == policy]
        best = front(points)
        panel.plot(
            [p.gpu_hours for p in best], [p.attainment for p in best], "-", color=colour, linewidth=0.8
        )
        panel.scatter(
            [p.gpu_hours for p in points], [p.attainment for p in points], s=12, color=colour, label=policy
        )
        tuned = [p for p in points if p.knobs == report.chosen[policy]]
        panel.scatter(
            [p.gpu_hours for p in tuned],
            [p.attainment for p in tuned],
            s=45,
            facecolors="none",
            edgecolors=colour,
        )
    panel.plot([mine.gpu_hours], [mine.attainment], "*", color="#cc3311", markersize=14, label=mine.policy)
    panel.set_title(mine.load, fontsize="medium")
    panel.set_xlabel("GPU-hours", fontsize="small")
    panel.set_ylabel("SLO attained", fontsize="small")
    panel.set_ylim(min(0.6, mine.attainment - 0.1), 1.01)
