"""What the user gave is a usage error; what is our fault is not called one."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tidemill_bench import __main__ as bench
from tidemill_bench import policies_command
from tidemill_bench.accuracy import command as accuracy_command
from tidemill_bench.arguments import UsageError
from tidemill_bench.fleet import commands
from tidemill_bench.load import command as load_command


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


def accuracy_of(model: str, text: Path) -> argparse.Namespace:
    return argparse.Namespace(model=model, text=text, float32=False, json=None)


@pytest.mark.parametrize(
    ("model", "refused"),
    [
        ("sim://x", "--model: sim://x has no accuracy"),
        ("nowhere", "--model: model URI 'nowhere' has no scheme"),
        ("file:///no/such/model", "--model: there is no model at /no/such/model"),
    ],
)
def test_a_model_without_an_accuracy_is_the_users_affair(model: str, refused: str) -> None:
    with pytest.raises(UsageError, match=refused):
        accuracy_command.run(accuracy_of(model, accuracy_command.TEXT))


@pytest.mark.parametrize(
    ("content", "refused"),
    [(None, "can't be read"), (b"\xff\xfe\xff", "can't be read"), (b"", "has 0 tokens")],
)
def test_a_text_that_cannot_be_read_is_the_users_affair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, refused: str
) -> None:
    class Letters:
        def encode(self, text: str) -> list[int]:
            return [ord(letter) for letter in text]

    monkeypatch.setattr(accuracy_command, "_real_model", lambda _uri: None)
    monkeypatch.setattr(accuracy_command, "load_tokenizer", lambda _model: Letters())
    text = tmp_path / "text.txt"
    if content is not None:
        text.write_bytes(content)
    with pytest.raises(UsageError, match=refused):
        accuracy_command.run(accuracy_of("builtin://x", text))


@pytest.mark.parametrize("fault", [ValueError("a fault"), OSError("a fault")])
def test_a_fault_of_ours_in_accuracy_is_not_told_as_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fail(*_: object) -> list[int]:
        raise fault

    monkeypatch.setattr(accuracy_command, "_tokens", fail)
    with pytest.raises(type(fault), match="a fault"):
        bench._accuracy(argparse.ArgumentParser(), accuracy_of("builtin://x", accuracy_command.TEXT))


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (("--rate", "0"), "--rate 0 is not a positive number"),
        (("--vocab-size", "300"), "--vocab-size 300 is too small"),
    ],
)
def test_flags_of_a_load_that_cannot_be_used_are_refused(given: tuple[str, ...], refused: str) -> None:
    parser = argparse.ArgumentParser()
    load_command.add_arguments(parser)
    with pytest.raises(UsageError, match=refused):
        load_command.run(parser.parse_args(["--model", "m", *given]))


def test_a_fault_of_ours_in_a_load_is_not_told_as_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> list[object]:
        raise ValueError("a fault")

    parser = argparse.ArgumentParser()
    load_command.add_arguments(parser)
    monkeypatch.setattr(load_command, "_plan", fail)
    with pytest.raises(ValueError, match="a fault"):
        bench._load(parser, parser.parse_args(["--model", "m"]))
