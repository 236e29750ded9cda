from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaling_builders import START, Scenario, make_histogram, make_load, make_policy, with_figures
from tidemill_bench.__main__ import main
from tidemill_bench.fleet.replay import replay, turning_points
from tidemill_operator.autoscaling.load_json import Recording, RecordingError, header, read, to_line


def recorded() -> list[str]:
    histogram = make_histogram(0.0, 1.0, 2.0, 3.0, 3.0, 4.0)
    load = with_figures(make_load(3), num_waiting=40, num_running=48, time_to_first_token=histogram)
    return [
        header({"minReplicas": 1, "maxReplicas": 9, "slo": {"timeToFirstToken": "3s"}}),
        *(to_line(replace(with_figures(load, sampled_at=START + t), at=START + t)) for t in range(0, 60, 5)),
    ]


def test_a_recorded_load_reads_back_as_it_was_and_is_plain_json() -> None:
    load = with_figures(make_load(2), time_to_first_token=make_histogram(0.0, 1.0, 2.0, 3.0, 3.0, 4.0))
    assert read([to_line(load)]) == Recording(scaling=None, loads=(load,))
    assert "Infinity" not in to_line(load)


@pytest.mark.parametrize("line", ["{", "[]", '{"at": 1}', '{"at": 1, "replicas": [{}], "gateways": []}'])
def test_a_line_that_is_no_load_is_named(line: str) -> None:
    with pytest.raises(RecordingError, match="line 2"):
        read([header({}), line])


def test_a_replay_decides_as_the_operator_did() -> None:
    scenario = Scenario(make_policy())
    loads = []
    for _ in range(20):
        decision = scenario.step(with_figures(make_load(2), num_waiting=30, num_running=48), rate=3.0)
        loads.append(scenario.seen)
    steps = replay(Recording(scaling=None, loads=tuple(loads)), scenario.policy)
    assert [s.decision.replicas for s in steps] == [d.replicas for d in scenario.decisions]
    assert steps[-1].decision.reason == decision.reason
    assert len(turning_points(steps)) < len(steps)


def test_the_command_prints_decisions_with_reasons_and_ends_with_one_json_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "load.jsonl"
    file.write_text("\n".join(recorded()))
    monkeypatch.setattr("sys.argv", ["tidemill-bench", "replay", str(file)])
    with pytest.raises(SystemExit, match="0"):
        main()
    printed = capsys.readouterr().out.splitlines()
    assert any("Queue: 120 requests wait" in line for line in printed)
    figures = json.loads(printed[-1])
    assert figures["num_loads"] == 12
    assert figures["decisions"][-1]["replicas"] > 3
