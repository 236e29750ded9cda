from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core_process import LIMIT_SECONDS, CoreProcess
from engine_builders import make_request
from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig, SchedulerConfig
from tidemill_engine.errors import PeerGone
from tidemill_engine.messages import (
    AbortRequest,
    CoreFailed,
    LoadProgress,
    RequestOutput,
    Shutdown,
)

Start = Callable[..., CoreProcess]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[CoreProcess] = []

    def start_core(
        uri: str = "sim://test?step_ms=0&num_blocks=64&output_tokens=5",
        environment: dict[str, str] | None = None,
        **scheduler: int,
    ) -> CoreProcess:
        config = CoreConfig(
            model=ModelConfig(uri=uri),
            cache=CacheConfig(block_size=4),
            scheduler=SchedulerConfig(**scheduler),  # type: ignore[arg-type]
        )
        started.append(CoreProcess(config, environment))
        return started[-1]

    yield start_core
    for core in started:
        core.close()


def test_it_loads_says_ready_answers_and_shuts_down_with_status_0(start: Start) -> None:
    core = start()
    ready = core.wait_ready()
    assert (ready.num_blocks, ready.block_size, ready.max_model_len) == (64, 4, 256)
    assert isinstance(core.messages[0], LoadProgress)
    core.send(make_request("a", max_tokens=20, ignore_eos=False))
    assert core.wait_finish("a").finish_reason == "stop"
    assert len(core.tokens("a")) == 6
    assert core.wait_idle().num_free_blocks == 64
    core.send(Shutdown())
    assert core.process.wait(LIMIT_SECONDS) == 0


def test_many_requests_at_once_all_get_what_they_get_alone(start: Start) -> None:
    core = start(max_num_seqs=8, max_num_batched_tokens=16)
    core.wait_ready()
    requests = [make_request(f"r{index}", prompt_len=3 + index, max_tokens=12) for index in range(24)]
    core.send(*requests)
    together = {request.request_id: core.wait_finish(request.request_id) for request in requests}
    answers = {name: core.tokens(name) for name in together}
    core.messages.clear()
    for request in requests[::7]:
        core.send(request)
        core.wait_finish(request.request_id)
        assert core.tokens(request.request_id) == answers[request.request_id]


def test_steps_in_flight_change_no_token_and_an_abort_among_them_frees_the_blocks(start: Start) -> None:
    requests = [make_request(f"r{index}", prompt_len=3 + index, max_tokens=12) for index in range(6)]
    answers = []
    for depth in (1, 2):
        core = start(f"sim://test?step_ms=1&num_blocks=64&depth={depth}", max_num_seqs=8)
        core.wait_ready()
        core.send(*requests)
        answers.append([(core.wait_finish(r.request_id), core.tokens(r.request_id))[1] for r in requests])
    assert answers[0] == answers[1]
    core.send(make_request("long", max_tokens=200))
    core.wait_for(lambda m: isinstance(m, RequestOutput) and m.request_id == "long")
    core.send(AbortRequest(request_id="long"))
    assert core.wait_finish("long").finish_reason == "abort"
    assert core.wait_idle().num_free_blocks == 64


def test_a_refused_request_ends_alone(start: Start) -> None:
    core = start()
    core.wait_ready()
    core.send(make_request("bad", prompt=[99999]), make_request("good", max_tokens=3))
    assert core.wait_finish("bad").finish_reason == "error"
    assert core.wait_finish("good").finish_reason == "length"


def test_an_abort_frees_the_blocks(start: Start) -> None:
    core = start("sim://test?step_ms=1&num_blocks=64")
    core.wait_ready()
    core.send(make_request("a", max_tokens=200))
    core.wait_for(lambda m: isinstance(m, RequestOutput))
    core.send(AbortRequest(request_id="a"), AbortRequest(request_id="never heard of"))
    assert core.wait_finish("a").finish_reason == "abort"
    assert core.wait_idle().num_free_blocks == 64


def test_a_model_that_cannot_be_loaded_says_why_and_exits_with_3(start: Start) -> None:
    core = start("sim://test?fail=load:The%20weights%20are%20wet")
    failed = core.wait_for(lambda m: isinstance(m, CoreFailed))
    assert failed == CoreFailed(reason="ModelLoadFailed", message="The weights are wet")
    assert core.process.wait(LIMIT_SECONDS) == 3


def test_an_unknown_parameter_is_named(start: Start) -> None:
    core = start("sim://test?speed=9")
    failed = core.wait_for(lambda m: isinstance(m, CoreFailed))
    assert isinstance(failed, CoreFailed)
    assert failed.reason == "InvalidConfig"
    assert "speed" in failed.message
    assert core.process.wait(LIMIT_SECONDS) == 3


def test_it_ignores_sigterm_and_ends_when_the_api_process_is_gone(start: Start) -> None:
    core = start()
    core.wait_ready()
    core.process.send_signal(signal.SIGTERM)
    core.send(make_request("a", max_tokens=3))
    core.wait_finish("a")
    core.socket.shutdown(socket.SHUT_RDWR)
    assert core.process.wait(LIMIT_SECONDS) == 0


def test_its_death_shows_as_the_end_of_the_file(start: Start) -> None:
    core = start()
    core.wait_ready()
    core.process.send_signal(signal.SIGKILL)
    with pytest.raises(PeerGone):
        core.wait_for(lambda m: isinstance(m, CoreFailed))


def test_the_heartbeat_promises_a_time_to_come_while_idle(start: Start) -> None:
    core = start()
    assert not core.heartbeat.is_overdue(time.monotonic())
    core.wait_ready()
    core.send(make_request("a", max_tokens=3))
    core.wait_finish("a")
    deadline = core.heartbeat.deadline
    assert deadline is not None
    assert deadline > time.monotonic()


def test_a_sim_model_needs_no_torch(start: Start, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torch must not be imported')\n")
    core = start(environment={"PYTHONPATH": str(tmp_path)})
    core.wait_ready()
    core.send(make_request("a", max_tokens=3))
    assert core.wait_finish("a").finish_reason == "length"


def test_bad_usage_exits_with_2() -> None:
    arguments = [
        "--fd",
        "0",
        "--heartbeat-fd",
        "0",
        "--config",
        '{"model": {"uri": "sim://x", "dtype": "int3"}}',
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tidemill_engine.core", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "dtype" in done.stderr
