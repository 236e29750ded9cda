from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine_builders import make_request
from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig, SchedulerConfig
from tidemill_engine.errors import PeerGone
from tidemill_engine.heartbeat import HeartbeatReader, create_heartbeat_fd
from tidemill_engine.ipc import FrameConnection, socket_pair
from tidemill_engine.messages import (
    AbortRequest,
    ApiFrame,
    CoreFailed,
    CoreFrame,
    CoreMessage,
    CoreReady,
    CoreStats,
    EngineRequest,
    LoadProgress,
    RequestOutput,
    Shutdown,
    StepTokens,
)

LIMIT_SECONDS = 60.0


class CoreProcess:
    """A real core process, seen from the API process's side."""

    def __init__(self, config: CoreConfig, environment: dict[str, str] | None = None) -> None:
        mine, theirs = socket_pair()
        self.heartbeat_fd = create_heartbeat_fd()
        self.heartbeat = HeartbeatReader(self.heartbeat_fd)
        arguments = ["--fd", str(theirs.fileno()), "--heartbeat-fd", str(self.heartbeat_fd)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tidemill_engine.core", *arguments, "--config", config.to_json()],
            pass_fds=[theirs.fileno(), self.heartbeat_fd],
            env={**os.environ, **(environment or {})},
        )
        theirs.close()
        self.socket: socket.socket = mine
        self.connection = FrameConnection(mine, CoreFrame)
        self.messages: list[CoreMessage] = []
        self.ids: dict[int, str] = {}

    def send(self, *messages: EngineRequest | AbortRequest | Shutdown) -> None:
        self.ids |= {m.handle: m.request_id for m in messages if isinstance(m, EngineRequest)}
        self.connection.send(ApiFrame(messages=list(messages)))

    def wait_for(self, found: Callable[[CoreMessage], bool]) -> CoreMessage:
        """Return the first message of which this holds, old or new."""
        deadline = time.monotonic() + LIMIT_SECONDS
        seen = 0
        while True:
            for message in self.messages[seen:]:
                if found(message):
                    return message
            seen = len(self.messages)
            assert time.monotonic() < deadline, f"not among {self.messages[-20:]}"
            for frame in self.connection.receive(1.0):
                for message in frame.messages:
                    self.messages += self.spelled_out(message)

    def spelled_out(self, message: CoreMessage) -> list[CoreMessage]:
        """Return columns of tokens as outputs of their own."""
        if not isinstance(message, StepTokens):
            return [message]
        return [RequestOutput(request_id=self.ids[h], token_ids=[token]) for h, token in message.pairs()]

    def wait_ready(self) -> CoreReady:
        ready = self.wait_for(lambda message: isinstance(message, CoreReady))
        assert isinstance(ready, CoreReady)
        return ready

    def wait_finish(self, request_id: str) -> RequestOutput:
        output = self.wait_for(
            lambda m: (
                isinstance(m, RequestOutput) and m.request_id == request_id and m.finish_reason is not None
            )
        )
        assert isinstance(output, RequestOutput)
        return output

    def wait_idle(self) -> CoreStats:
        """Return the newest figures once they show nobody running."""
        self.messages = [m for m in self.messages if not isinstance(m, CoreStats) or not m.num_running]
        stats = self.wait_for(
            lambda m: isinstance(m, CoreStats) and m.num_steps > 0 and m.num_running == m.num_waiting == 0
        )
        assert isinstance(stats, CoreStats)
        return stats

    def tokens(self, request_id: str) -> list[int]:
        outputs = [m for m in self.messages if isinstance(m, RequestOutput) and m.request_id == request_id]
        return [token for output in outputs for token in output.token_ids]

    def close(self) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait()
        os.close(self.heartbeat_fd)


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
