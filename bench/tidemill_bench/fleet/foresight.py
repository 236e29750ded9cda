"""An autoscaler that knows every request in advance: what a load costs whom nothing surprises.

Not a policy that anybody could run, and no bound either: it plans for what requests take on average, for a
start-up time ahead, by the same square-root rule as ours, and its curve is made of several settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemill_operator.autoscaling.staffing import replicas_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tidemill_bench.fleet.loads import Load
    from tidemill_bench.fleet.settings import FleetSettings
    from tidemill_operator.autoscaling.model import FleetLoad

STEP_SECONDS = 5.0
KEPT_SECONDS = 15.0
LATE_PODS = 1.1
"""A pod may take so many times the mean start-up time."""
SETTINGS = tuple(
    (used, window)
    for window in (30.0, 60.0, 120.0)
    for used in (0.45, 0.55, 0.65, 0.75, 0.82, 0.88, 0.94, 0.99)
)
"""(share of a single replica that may be used, seconds over which work is averaged)."""


def work_over_time(load: Load, settings: FleetSettings, window: float) -> NDArray[np.float64]:
    """Return the replicas' worth of work that arrives around each moment, STEP_SECONDS apart.

    A replica's worth is what keeps its steps within the inter-token objective.
    """
    fixed, token, context, pair, row = settings.machine.step_time.coefficients
    at, prompt, output = np.array(load.arrivals, dtype=float).T
    seconds = prompt * token + prompt**2 / 2 * pair
    seconds += output * (token + row + (prompt + output / 2) * context)
    done = np.concatenate([[0.0], np.cumsum(seconds / (1 - fixed / settings.slo.itl_seconds))])
    times = np.arange(0.0, load.duration_seconds + STEP_SECONDS, STEP_SECONDS)
    later, sooner = (done[np.searchsorted(at, times + shift)] for shift in (window / 2, -window / 2))
    work: NDArray[np.float64] = (later - sooner) / window
    return work


def needed(work: Sequence[float] | NDArray[np.float64], used: float) -> list[int]:
    """Return the replicas that carry each amount of work."""
    return [replicas_for(float(one), used) for one in work]


class Foresight:
    """The autoscaler."""

    def __init__(self, load: Load, settings: FleetSettings, used: float, window: float) -> None:
        self._numbers = needed(work_over_time(load, settings, window), used)
        self._ahead = LATE_PODS * settings.startup_seconds

    def decide(self, load: FleetLoad) -> int:
        """Return the most that is needed until a pod asked for now would be ready."""
        first = max(0, int((load.at - KEPT_SECONDS) / STEP_SECONDS))
        last = int((load.at + self._ahead) / STEP_SECONDS)
        return max(
            1, *self._numbers[first : last + 1], self._numbers[-1] if first >= len(self._numbers) else 1
        )
