"""What an engine says of its load in the header of every answer.

Pure. Knows the header's form: `running=3 waiting=1 kv=0.4123 tokens=5120`. Refuses to know when it came and
what follows from it. Other engines send none, and what can't be read counts as none.
"""

import math
from dataclasses import dataclass
from typing import Final

LOAD_HEADER: Final = "x-tidemill-load"
MAX_CHARACTERS: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadReport:
    """One replica's load: sequences running and waiting, share of KV cache used, tokens in flight."""

    num_running: int
    num_waiting: int
    kv_usage_ratio: float
    num_tokens: int


def parse_load(header: str | None) -> LoadReport | None:
    """Read the header; None where there is none that makes sense."""
    if not header or len(header) > MAX_CHARACTERS:
        return None
    fields = dict(part.partition("=")[::2] for part in header.split())
    try:
        report = LoadReport(
            num_running=int(fields["running"]),
            num_waiting=int(fields["waiting"]),
            kv_usage_ratio=float(fields["kv"]),
            num_tokens=int(fields["tokens"]),
        )
    except (KeyError, ValueError):
        return None
    is_sane = min(report.num_running, report.num_waiting, report.num_tokens) >= 0
    return report if is_sane and math.isfinite(report.kv_usage_ratio) else None
