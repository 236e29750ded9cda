"""Public request traces, cut down (data/ATTRIBUTION.md says how), as requests for the simulator.

Knows the files' columns. A trace can be stretched in time, since it was recorded on larger machines.
"""

from __future__ import annotations

import csv
from importlib import resources

from tidemill_bench.shapes import SimRequest

TRACES = ("azure_2023_conv", "azure_2023_code", "mooncake_conversation")


def load_trace(name: str, *, stretch: float = 1.0, limit: int | None = None) -> list[SimRequest]:
    """Return the first `limit` requests of a trace in order of arrival, times multiplied by `stretch`."""
    if name not in TRACES:
        raise ValueError(f"trace {name!r} is unknown; choose one of {', '.join(TRACES)}")
    path = resources.files("tidemill_bench") / "data" / f"{name}.csv"
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    return [
        SimRequest(
            arrival_seconds=int(row["arrival_ms"]) / 1000 * stretch,
            num_prompt_tokens=max(1, int(row["prompt_tokens"])),
            num_output_tokens=max(1, int(row["output_tokens"])),
            prefix_ids=parse_blocks(row.get("prefix_blocks") or ""),
        )
        for row in rows[:limit]
    ]


def parse_blocks(text: str) -> tuple[int, ...]:
    """Read block ids written as `3 7-9`."""
    ids: list[int] = []
    for part in text.split():
        first, _, last = part.partition("-")
        ids.extend(range(int(first), int(last or first) + 1))
    return tuple(ids)
