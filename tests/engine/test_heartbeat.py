from __future__ import annotations

import os

import pytest

from tidemill_engine.heartbeat import HeartbeatReader, HeartbeatWriter, create_heartbeat_fd, step_deadline


@pytest.mark.parametrize(("predicted", "allowed"), [(0.0, 20.0), (1.0, 20.0), (5.0, 50.0), (100.0, 300.0)])
def test_a_step_may_take_ten_times_its_prediction_between_20_and_300_seconds(
    predicted: float, allowed: float
) -> None:
    assert step_deadline(1000.0, predicted) == 1000.0 + allowed


def test_the_reader_sees_what_the_writer_promised() -> None:
    fd = create_heartbeat_fd()
    reader, writer = HeartbeatReader(fd), HeartbeatWriter(fd)
    assert reader.deadline is None
    assert not reader.is_overdue(1e9)
    writer.beat(100.0, predicted_seconds=3.0)
    assert reader.deadline == 130.0
    assert not reader.is_overdue(129.0)
    assert reader.is_overdue(131.0)
    writer.beat(131.0)
    assert not reader.is_overdue(132.0)
    os.close(fd)
