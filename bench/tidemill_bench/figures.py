"""What a simulated or in-process run came to. Pure: a `Simulation` in, numbers out.

Definitions. Throughput: output tokens a second from the first arrival to the last token. TTFT: arrival to
first token. ITL: (last token - first) / (tokens - 1) of a request. Effective batch: rows in a step, weighed
by the step's time. Fairness: Jain's index of the requests' slowdowns, (sum x)^2 / (n sum x^2), where a
slowdown is a request's latency over what it would be alone; 1 = everybody is slowed down alike.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tidemill_bench.simulator import Simulation
    from tidemill_bench.step_time import StepTime

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One run in numbers; seconds, tokens a second, shares of 1."""

    num_requests: int
    num_failed: int
    makespan_seconds: float
    output_tokens_per_second: float
    requests_per_second: float
    e2e_p50: float
    e2e_p99: float
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    slo_attainment: float
    goodput: float
    """Requests a second whose first token came within the SLO."""
    fairness: float
    effective_batch: float
    padding_share: float
    cached_share: float
    num_preemptions: int

    def as_json(self) -> dict[str, float]:
        """Return plain values, rounded to four significant digits."""
        return {name: float(f"{value:.4g}") for name, value in asdict(self).items()}


def summarize(simulation: Simulation, ttft_slo: float | None, step_time: StepTime) -> Figures:
    """Reduce one run; requests that failed count against the SLO and in no latency."""
    times = simulation.times
    good = times.is_finished & (times.num_tokens > 0)
    ttft = (times.first_token - times.arrival)[good]
    e2e = (times.last_token - times.arrival)[good]
    tokens = times.num_tokens[good]
    itl = ((times.last_token - times.first_token)[good] / np.maximum(tokens - 1, 1))[tokens > 1]
    makespan = float(np.nanmax(times.last_token) - times.arrival.min()) if good.any() else 0.0
    rate = 1.0 / makespan if makespan else 0.0
    attained = attained_ttft(simulation, ttft_slo)
    prompts = np.array([r.num_prompt_tokens for r in simulation.requests], dtype=np.float64)
    slowdowns = e2e / _alone(prompts[good], tokens.astype(np.float64), step_time)
    return Figures(
        num_requests=len(good),
        num_failed=int((~good).sum()),
        makespan_seconds=makespan,
        output_tokens_per_second=float(tokens.sum()) * rate,
        requests_per_second=float(good.sum()) * rate,
        e2e_p50=_percentile(e2e, 50),
        e2e_p99=_percentile(e2e, 99),
        ttft_p50=_percentile(ttft, 50),
        ttft_p99=_percentile(ttft, 99),
        itl_p50=_percentile(itl, 50),
        itl_p99=_percentile(itl, 99),
        slo_attainment=float(attained.mean()),
        goodput=float(attained.sum()) * rate,
        fairness=jain(slowdowns),
        effective_batch=effective_batch(simulation),
        padding_share=_share(simulation.steps.num_padding_tokens, simulation.steps.num_tokens),
        cached_share=float(times.num_cached_tokens[good].sum() / max(1.0, prompts[good].sum())),
        num_preemptions=simulation.num_preemptions,
    )


def attained_ttft(simulation: Simulation, ttft_slo: float | None = None) -> npt.NDArray[np.bool_]:
    """Return which requests got their first token within the SLO: the given one, else each one's own."""
    own = np.array(
        [np.inf if r.slo_ttft_seconds is None else r.slo_ttft_seconds for r in simulation.requests]
    )
    bound = own if ttft_slo is None else np.full_like(own, ttft_slo)
    with np.errstate(invalid="ignore"):
        attained: npt.NDArray[np.bool_] = simulation.times.first_token - simulation.times.arrival <= bound
    return attained


def effective_batch(simulation: Simulation) -> float:
    """Return the mean number of rows in a step, weighed by time."""
    steps = simulation.steps
    total = float(steps.seconds.sum())
    return float((steps.num_rows * steps.seconds).sum() / total) if total else 0.0


def jain(values: FloatArray) -> float:
    """Return Jain's fairness index: 1 where all are equal, 1/n where one has everything."""
    squares = float((values**2).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares else 1.0


def _alone(prompts: FloatArray, outputs: FloatArray, step_time: StepTime) -> FloatArray:
    """Return about how long each request would take alone: its prompt in one go, then one step a token."""
    first, token, context, work, logits = step_time.coefficients
    prefill = first + token * prompts + work * prompts**2 / 2 + logits
    decode = first + 16 * token + context * (prompts + outputs / 2) + logits
    alone: FloatArray = prefill + (outputs - 1) * decode
    return alone


def _percentile(values: FloatArray, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else 0.0


def _share(part: npt.NDArray[np.int64], rest: npt.NDArray[np.int64]) -> float:
    total = int(part.sum()) + int(rest.sum())
    return int(part.sum()) / total if total else 0.0
