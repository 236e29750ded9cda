from collections.abc import Callable

import pytest

pytest.importorskip("torch")

from tidemill_bench.step import machine


def test_one_undisturbed_part_is_enough_for_the_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[float] = []

    def seconds(run: Callable[[], object]) -> float:
        read.append(float(run()))  # type: ignore[arg-type]  # a tensor's sum
        return 0.5 if len(read) == 7 else 2.0

    monkeypatch.setattr(machine, "_seconds", seconds)
    assert machine._bandwidth(1 << 20) == (1 << 18) / 0.5
    assert read == [float(1 << 16)] * len(read), "each part is read whole"
    assert len(read) >= 8
