"""Runs every experiment of `tidemill-bench policies` in turn."""

from __future__ import annotations

import logging
from dataclasses import replace

from tidemill_bench.policies import (
    CONTINUOUS,
    LOOSE_SLO,
    PolicyOptions,
    goodput,
    losses,
    saturated,
    sparse,
    sweep,
    traces,
)
from tidemill_bench.policies_report import PolicyReport
from tidemill_bench.promises import flood, slo_gain

logger = logging.getLogger(__name__)


def run_all(options: PolicyOptions) -> PolicyReport:
    """Run all experiments, the sweep only where there is time."""
    rows = saturated(options)
    capacity = {row.load: row.figures.requests_per_second for row in rows if row.engine == CONTINUOUS.name}
    return PolicyReport(
        machine=str(options.step_time),
        slo=str(options.slo),
        rows=rows,
        losses=losses(options, rows),
        goodput=goodput(options, capacity),
        loose_goodput={} if options.is_quick else goodput(replace(options, slo=LOOSE_SLO), capacity),
        sparse=sparse(options),
        slo_gain=slo_gain(options, capacity["medium"]),
        flood=flood(options, capacity["medium"]),
        traces=traces(options),
        sweep=[] if options.is_quick else sweep(options, "medium", capacity["medium"]),
    )
