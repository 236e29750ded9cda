"""A histogram under two names, to which many values can be added at once at little cost.

Knows counts and the exposition's families. The client library's own histogram takes some microseconds a
value, and every token of every stream is one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class PairedHistogram(Collector):
    """Counts values by upper bound; shown under our name, and under vLLM's with the model as a label."""

    def __init__(self, name: str, help_text: str, bounds: Sequence[float], model_name: str) -> None:
        self._name = name
        self._help_text = help_text
        self._bounds = tuple(bounds)
        self._model_name = model_name
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Add one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Add many values."""
        counts, bounds = self._counts, self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        self._sum += sum(values)

    def cumulative(self) -> list[tuple[float | None, float]]:
        """Return (upper bound, values up to it); the last has no bound."""
        found: list[tuple[float | None, float]] = []
        total = 0
        for bound, count in zip((*self._bounds, None), self._counts, strict=True):
            total += count
            found.append((bound, float(total)))
        return found

    def describe(self) -> Iterable[Metric]:
        """Name both families."""
        return [
            self._family(f"tidemill_{self._name}", []),
            self._family(f"vllm:{self._name}", ["model_name"]),
        ]

    def collect(self) -> Iterable[Metric]:
        """Yield both families with this moment's counts."""
        buckets = [
            ("+Inf" if bound is None else str(float(bound)), count) for bound, count in self.cumulative()
        ]
        for family, labels in zip(self.describe(), ([], [self._model_name]), strict=True):
            family.add_metric(labels, buckets, sum_value=self._sum)  # type: ignore[attr-defined]
            yield family

    def _family(self, name: str, labels: Sequence[str]) -> HistogramMetricFamily:
        return HistogramMetricFamily(name, self._help_text, labels=labels)
