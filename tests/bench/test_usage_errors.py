"""What the user gave is a usage error; what is our fault is not called one."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tidemill_bench import __main__ as bench
from tidemill_bench import policies_command
from tidemill_bench.arguments import UsageError
from tidemill_bench.fleet import commands


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    policies_command.add_arguments(parser)
    return parser.parse_args(words)


def test_constants_that_cannot_be_read_are_the_users_affair(tmp_path: Path) -> None:
    damaged = tmp_path / "constants.json"
    damaged.write_text("{}", encoding="utf-8")
    for path in (damaged, tmp_path / "missing.json"):
        with pytest.raises(UsageError, match="--step-time"):
            policies_command.run(parsed("--step-time", str(path)))


def test_a_fault_of_ours_is_not_told_as_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> dict[str, object]:
        raise ValueError("a fault")

    monkeypatch.setattr(policies_command, "_run_simulator", fail)
    with pytest.raises(ValueError, match="a fault"):
        bench._policies(argparse.ArgumentParser(), parsed())


@pytest.mark.parametrize("given", [("--loads", "nosuch"), ("--policies", "nosuch")])
def test_a_name_of_no_load_or_policy_is_refused_with_those_that_there_are(given: tuple[str, str]) -> None:
    parser = argparse.ArgumentParser()
    commands.add_simulate(parser)
    with pytest.raises(UsageError, match=r"'nosuch' is unknown; choose of \w+"):
        commands.simulate(parser.parse_args(["--quick", *given]))


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (("--account", "--loads", "day"), "--loads does not go with --account"),
        (("--account", "--replicas", "both"), "--replicas both does not go with --account"),
        (("--replicas", "both", "--quick"), "--quick does not go with --replicas both"),
        (("--replicas", "both", "--plot", "x.svg"), "--plot does not go with --replicas both"),
    ],
)
def test_flags_of_which_another_makes_nothing_are_refused(given: tuple[str, ...], refused: str) -> None:
    parser = argparse.ArgumentParser()
    commands.add_simulate(parser)
    with pytest.raises(UsageError, match=refused):
        commands.simulate(parser.parse_args(given))


def test_a_scaling_file_with_an_unknown_field_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "load.jsonl").write_text('{"scaling": {"maxReplicas": 4}}\n', encoding="utf-8")
    (tmp_path / "scaling.json").write_text('{"maxReplicas": 4, "slo": {"ttft": "2s"}}', encoding="utf-8")
    parser = argparse.ArgumentParser()
    commands.add_replay(parser)
    words = [str(tmp_path / "load.jsonl"), "--scaling", str(tmp_path / "scaling.json")]
    with pytest.raises(SystemExit):
        commands.run_replay(parser, parser.parse_args(words))
    assert "spec.scaling.slo.ttft: is not a field; there are timeToFirstToken" in capsys.readouterr().err
