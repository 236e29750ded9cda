import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill_bench.load.workload import PlannedRequest
from tidemill_bench.race import contest as contest_module
from tidemill_bench.race.contender import Result
from tidemill_bench.race.contest import Contest, ContestOptions
from tidemill_bench.race.peers import Configuration, Contender
from tidemill_bench.race.running import Running, ScriptRunning
from tidemill_bench.race.server import Server, ServerCommand, SetupError, family


class FakeRunning:
    """Counts what it is told; its rate is given."""

    def __init__(self, name: str, rate: float, book: list[tuple[str, str, tuple[int, ...]]]) -> None:
        self.name, self._rate, self._book = name, rate, book
        self.is_paused = False

    async def run(self, requests: Sequence[PlannedRequest], concurrency: int) -> Result:
        assert not self.is_paused
        self._book.append((self.name, f"x{concurrency}", requests[0].prompt_token_ids))
        return Result(output_tokens_per_second=self._rate, prompt_tokens_per_second=self._rate)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    async def end(self) -> None:
        self._book.append((self.name, "end", ()))


def contender(name: str, *labels: str, fails: str = "") -> Contender:
    def prepare(_cache: Path) -> tuple[Configuration, ...]:
        if fails:
            raise SetupError(fails)
        return tuple(
            Configuration(label=label, command=lambda _port: ServerCommand(argv=("true",)))
            for label in labels
        )

    return Contender(name=name, precision="bf16", prepare=prepare)


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, tuple[int, ...]]]:
    written: list[tuple[str, str, tuple[int, ...]]] = []
    rates = {"default": 10.0, "slow": 1.0, "fast": 5.0}

    async def start(self: Contest, who: Contender, configuration: Configuration) -> Running:
        return FakeRunning(f"{who.name}/{configuration.label}", rates[configuration.label], written)

    monkeypatch.setattr(contest_module.Contest, "_start", start)
    return written


def options(tmp_path: Path, rounds: int = 2) -> ContestOptions:
    return ContestOptions(
        workloads=("single",), rounds=rounds, requests_per_slot=8, is_quick=True, cache=tmp_path
    )


async def test_a_peer_runs_in_the_better_of_its_configurations(
    tmp_path: Path, book: list[tuple[str, str, tuple[int, ...]]]
) -> None:
    contenders = [contender("tidemill bf16", "default"), contender("vllm-cpu", "slow", "fast")]
    report = await Contest(contenders, options(tmp_path)).run()
    assert report.configurations["vllm-cpu"] == {"single": "fast"}
    assert report.rate_ratios("vllm-cpu")["single"].median == 2.0


async def test_a_peer_runs_in_the_configuration_that_was_asked_for_after_a_few_requests(
    tmp_path: Path, book: list[tuple[str, str, tuple[int, ...]]]
) -> None:
    contenders = [contender("tidemill bf16", "default"), contender("vllm-cpu", "slow", "fast")]
    asked = replace(options(tmp_path), configurations=("slow",))
    report = await Contest(contenders, asked).run()
    assert report.configurations == {"tidemill bf16": {"single": "default"}, "vllm-cpu": {"single": "slow"}}
    assert "vllm-cpu/fast" not in {name for name, _, _ in book}
    assert replace(asked, is_quick=False).num_trial_requests("uniform") == 8


async def test_rounds_are_interleaved_with_the_same_requests_in_a_round_and_others_in_the_next(
    tmp_path: Path, book: list[tuple[str, str, tuple[int, ...]]]
) -> None:
    contenders = [contender("tidemill bf16", "default"), contender("vllm-cpu", "fast")]
    await Contest(contenders, options(tmp_path)).run()
    turns = [(name, prompt) for name, what, prompt in book if what == "x1"]
    trials, turns = turns[:2], turns[2:]
    assert [name.split("/")[0] for name, _ in trials] == ["tidemill bf16", "vllm-cpu"]
    assert [name.split("/")[0] for name, _ in turns] == [
        "tidemill bf16", "vllm-cpu", "vllm-cpu", "tidemill bf16",
    ]  # fmt: skip
    assert trials[0][1] not in {prompt for _, prompt in turns}
    assert turns[0][1] == turns[1][1] != turns[2][1] == turns[3][1]


async def test_a_peer_that_cannot_be_set_up_is_named_with_its_reason_and_the_rest_goes_on(
    tmp_path: Path, book: list[tuple[str, str, tuple[int, ...]]]
) -> None:
    contenders = [
        contender("tidemill bf16", "default"),
        contender("llama.cpp", fails="cmake is not installed"),
    ]
    report = await Contest(contenders, options(tmp_path)).run()
    assert report.failures == {"llama.cpp": "cmake is not installed"}
    assert len(report.runs) == 2


async def test_everything_that_was_started_is_ended(
    tmp_path: Path, book: list[tuple[str, str, tuple[int, ...]]]
) -> None:
    await Contest([contender("vllm-cpu", "slow", "fast")], options(tmp_path)).run()
    assert {name for name, what, _ in book if what == "end"} == {"vllm-cpu/slow", "vllm-cpu/fast"}


async def test_a_script_answers_run_after_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import json, sys\n"
        "print(json.dumps({'ready': True}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    print(json.dumps({'seconds': 2.0, 'ttft': [0.5], 'gaps': []}), flush=True)\n"
    )
    command = ServerCommand(argv=(sys.executable, "-I", str(script)))
    running = await ScriptRunning.start(command, tmp_path / "log")
    requests = [PlannedRequest(index=0, prompt_token_ids=(1, 2, 3, 4), output_tokens=10)]
    for _ in range(2):
        result = await running.run(requests, 1)
    await running.end()
    assert (result.output_tokens_per_second, result.prompt_tokens_per_second) == (5.0, 2.0)
    assert (result.ttft_p99_seconds, result.itl_p99_seconds) == (0.5, None)


async def test_a_server_or_script_that_ends_says_its_last_words(tmp_path: Path) -> None:
    argv = (sys.executable, "-c", "import sys; sys.exit('no such flag')")
    server = Server(ServerCommand(argv=argv), 1, tmp_path / "server.log")
    with pytest.raises(SetupError, match="ended with 1: no such flag"):
        await server.wait_ready()
    server.end()
    with pytest.raises(SetupError, match="no such flag"):
        await ScriptRunning.start(ServerCommand(argv=argv), tmp_path / "script.log")


def test_ending_a_server_ends_its_children_whatever_their_session(tmp_path: Path) -> None:
    child = "import time; time.sleep(600)"
    parent = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n"
    )
    log = tmp_path / "log"
    server = Server(ServerCommand(argv=(sys.executable, "-c", parent)), 1, log)
    while "started" not in log.read_text():
        pass
    members = family(server._process.pid)
    assert len(members) == 2
    server.pause()
    server.end()
    assert not any(Path(f"/proc/{pid}").exists() and state(pid) != "Z" for pid in members)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(("is_quick", "expected"), [(True, 64), (False, 128)])
def test_a_configuration_is_tried_with_all_slots_in_flight(
    is_quick: bool, expected: int, tmp_path: Path
) -> None:
    options = ContestOptions(
        workloads=("uniform",), rounds=1, requests_per_slot=8, is_quick=is_quick, cache=tmp_path
    )
    assert options.num_trial_requests("uniform") == expected
    assert options.num_trial_requests("single") <= 4
