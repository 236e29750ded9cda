"""The whole engine in its two processes on the sim model: streams, lost clients, failures, drain."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from api_builders import make_serve_config, parse_events, read_event
from engine_process import EngineProcess, is_running, running_engine, until
from tidemill_engine.api.config import AdminConfig, HttpConfig
from tidemill_engine.api.serve import Listening, Server
from tidemill_engine.api.termination import MAX_LOG_BYTES, Ending, termination_record
from tidemill_engine.config import CoreConfig, ModelConfig

pytestmark = pytest.mark.slow  # each test starts both processes

SIM = "sim://test?step_ms=2&output_tokens=20"
SLOW = "sim://test?step_ms=400"
BLOCK_SIZE = 32


def memory_map(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


async def stream_text(engine: EngineProcess, prompt: str) -> tuple[str, Any]:
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with engine.session.post(engine.url + "/v1/chat/completions", json=body) as response:
        events = parse_events(await response.read())
    assert events[-1] == "[DONE]"
    assert events[-3]["choices"][0]["finish_reason"] in {"stop", "length"}
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-2])
    return text, events[-2]["usage"]


async def test_concurrent_streams_are_complete_and_the_same_as_alone() -> None:
    async with running_engine(SIM) as engine:
        prompts = [f"question {i} " + "word " * i for i in range(16)]
        alone = [await stream_text(engine, prompt) for prompt in prompts]
        together = await asyncio.gather(*(stream_text(engine, prompt) for prompt in prompts))
        stats = await engine.until_idle()
    assert [text for text, _ in together] == [text for text, _ in alone]
    assert [usage["completion_tokens"] for _, usage in together] == [
        usage["completion_tokens"] for _, usage in alone
    ]
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for _, usage in together]
    assert cached == [(usage["prompt_tokens"] - 1) // BLOCK_SIZE * BLOCK_SIZE for _, usage in together]
    assert len({text for text, _ in alone}) == len(prompts)
    assert stats["num_free_blocks"] == stats["num_total_blocks"]


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_leaves_frees_its_blocks_within_two_steps(is_streamed: bool) -> None:
    async with running_engine(SLOW) as engine:
        body = {"prompt": "x", "max_tokens": 3000, "stream": is_streamed, "ignore_eos": True, "n": 4}
        request = asyncio.create_task(engine.session.post(engine.url + "/v1/completions", json=body))
        if is_streamed:
            response = await request
            await read_event(response)
            response.close()
        else:
            await engine.until_stats(lambda stats: bool(stats["num_running"]))
            request.cancel()
        seen = (await engine.stats())["num_steps"]
        stats = await engine.until_idle()
        _, load = await engine.get("/load", is_admin=True)
    assert stats["num_steps"] - seen <= 2 + 1  # the figures seen may be one step old
    assert load["free_blocks"] == load["total_blocks"]
    assert load["in_flight_tokens"] == 0


async def test_malformed_input_harms_nothing_that_comes_after() -> None:
    bad: list[dict[str, Any]] = [
        {"prompt": ""},
        {"prompt": [[]]},
        {"prompt": "x", "max_tokens": -1},
        {"prompt": "x", "logit_bias": {"4096": 5}},
        {"prompt": [4096]},
        {"prompt": "x" * 5000},
        {"prompt": "x", "model": "unknown"},
        {"prompt": "x", "temperature": "warm"},
    ]
    async with running_engine(SIM) as engine:
        running = asyncio.create_task(stream_text(engine, "meanwhile"))
        statuses = [(await engine.post("/v1/completions", **body))[0] for body in bad]
        text, usage = await running
        again, _ = await stream_text(engine, "meanwhile")
    assert statuses == [400, 400, 400, 400, 400, 400, 404, 400]
    assert text == again
    assert usage["completion_tokens"] > 0


async def test_max_tokens_is_clamped_to_the_context() -> None:
    async with running_engine("sim://test?step_ms=0&max_model_len=64") as engine:
        status, body = await engine.post(
            "/v1/completions", prompt=[5] * 60, max_tokens=65535, ignore_eos=True
        )
    assert status == 200
    assert body["usage"]["completion_tokens"] == 4
    assert body["choices"][0]["finish_reason"] == "length"


async def test_a_killed_core_ends_streams_with_an_error_event_and_the_process_with_4(tmp_path: Path) -> None:
    log = tmp_path / "termination"
    async with running_engine(SLOW, "--termination-log", str(log)) as engine:
        body = {"prompt": "x", "max_tokens": 3000, "stream": True, "ignore_eos": True}
        async with engine.session.post(engine.url + "/v1/completions", json=body) as response:
            await read_event(response)
            os.kill(engine.core_pid, signal.SIGKILL)
            events = parse_events(await response.read())
        code = await engine.exit_code()
    assert events[-1]["error"]["code"] == "engine_died"
    assert code == 4
    record = json.loads(log.read_text())
    assert record["reason"] == "CoreDied"
    assert "SIGKILL" in record["message"]


async def test_a_model_that_can_not_be_loaded_ends_the_process_with_3_and_its_reason(tmp_path: Path) -> None:
    log = tmp_path / "termination"
    uri = "sim://test?startup_ms=100&fail=load:no+space+left"
    async with running_engine(uri, "--termination-log", str(log), waits_for="no space left") as engine:
        assert await engine.exit_code() == 3
    record = json.loads(log.read_text())
    assert set(record) == {"reason", "message"}
    assert record["reason"] == "ModelLoadFailed"
    assert "no space left" in record["message"]


async def test_a_missing_model_file_ends_the_process_with_3(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/none.gguf"
    log = tmp_path / "termination"
    async with running_engine(uri, "--termination-log", str(log), waits_for="no model at") as engine:
        assert await engine.exit_code() == 3
    assert json.loads(log.read_text())["reason"] == "ModelNotFound"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ftp://somewhere"], ["'ftp'", "sim://"]),
        (["sim://x?speed=3"], ["'speed'", "step_ms"]),
        (["sim://x", "--port", "70000"], ["port", "70000", "65535"]),
        (["sim://x", "--block-size", "3"], ["block_size", "3"]),
        (["sim://x", "--admin-host", "0.0.0.0"], ["admin_host", "0.0.0.0", "--admin-token-file"]),
        (["sim://x", "--drain-timeout", "-1"], ["drain_timeout", "-1"]),
        (["sim://x", "--max-num-seqs", "many"], ["--max-num-seqs", "many"]),
        (["sim://x", "--served-model-name", ""], ["served_model_name"]),
        ([], ["URI"]),
    ],
)
def test_bad_usage_exits_with_2_and_names_flag_and_value(arguments: list[str], words: list[str]) -> None:
    command = [sys.executable, "-m", "tidemill_engine", "serve", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert all(word in result.stderr for word in words), result.stderr
    assert "Traceback" not in result.stderr


async def test_a_port_that_is_taken_is_said_and_not_a_traceback() -> None:
    async with running_engine("sim://one") as one:
        port = one.url.rpartition(":")[2]
        async with running_engine("sim://two", "--port", port, waits_for="address already in use") as two:
            assert await two.exit_code() == 2
            assert not any("Traceback" in line for line in two.lines)


async def test_sigterm_refuses_what_is_new_finishes_streams_and_exits_with_0() -> None:
    uri = "sim://test?step_ms=100&output_tokens=12"
    async with running_engine(uri, "--drain-grace", "0") as engine:
        body = {"prompt": "x", "max_tokens": 100, "stream": True}
        async with engine.session.post(engine.url + "/v1/completions", json=body) as response:
            await read_event(response)
            engine.process.terminate()
            await engine.until_logged("refusing new requests")
            async with engine.session.post(engine.url + "/v1/completions", json=body) as refused:
                assert refused.status == 503
                assert refused.headers["x-tidemill-draining"] == "true"
            assert (await engine.get("/health/ready"))[0] == 503
            assert (await engine.get("/health/live"))[0] == 200
            events = parse_events(await response.read())
        code = await engine.exit_code()
    assert events[-1] == "[DONE]"
    assert code == 0


async def test_streams_that_outlast_the_drain_timeout_end_with_an_error_event_and_0(tmp_path: Path) -> None:
    said = tmp_path / "termination-log"
    flags = ("--drain-grace", "0", "--drain-timeout", "0.3", "--termination-log", str(said))
    async with running_engine(SLOW, *flags) as engine:
        body = {"prompt": "x", "max_tokens": 3000, "stream": True, "ignore_eos": True}
        async with engine.session.post(engine.url + "/v1/completions", json=body) as response:
            await read_event(response)
            engine.process.terminate()
            events = parse_events(await response.read())
        code = await engine.exit_code()
    assert events[-1]["error"]["code"] == "shutting_down"
    assert code == 0
    assert json.loads(said.read_text())["message"].startswith("1 requests had not ended")


async def test_the_server_answers_probes_and_asks_to_retry_while_the_model_loads() -> None:
    async with running_engine("sim://test?startup_ms=600000", waits_for="started the core") as engine:
        assert (await engine.get("/health/live"))[0] == 200
        assert (await engine.get("/health/ready"))[0] == 503
        async with engine.session.post(engine.url + "/v1/completions", json={"prompt": "x"}) as response:
            assert response.status == 503
            assert int(response.headers["Retry-After"]) >= 1
        engine.process.terminate()
        assert await engine.exit_code() == 0


async def test_a_stopped_core_fails_liveness_and_a_running_one_does_not() -> None:
    listening: asyncio.Future[Listening] = asyncio.get_running_loop().create_future()
    config = make_serve_config(
        core=CoreConfig(model=ModelConfig(uri="sim://test")),
        http=HttpConfig(port=0),
        admin=AdminConfig(port=0),
    )
    almost = 14.0  # an idle core beats every second and promises 20
    server = Server(
        config,
        clock=lambda: time.monotonic() + almost,
        on_listening=listening.set_result,
    )
    run = asyncio.create_task(server.run())
    where = await listening
    await until(lambda: server.context.state.readiness().is_ok)
    assert server.context.liveness().is_ok
    os.kill(where.core_pid, signal.SIGSTOP)
    await until(lambda: not server.context.liveness().is_ok)
    assert "deadline" in server.context.liveness().reason
    server.stop("the test is over")
    ending = await run
    assert ending.exit_code == 4


@pytest.mark.slow
async def test_a_core_that_is_merely_busy_for_five_seconds_stays_live() -> None:
    async with running_engine("sim://test?step_ms=5000&output_tokens=1") as engine:
        request = asyncio.create_task(engine.post("/v1/completions", prompt="x", max_tokens=1))
        statuses = set()
        while not request.done():
            statuses.add((await engine.get("/health/live"))[0])
            await asyncio.sleep(0.1)
        status, _ = await request
    assert statuses == {200}
    assert status == 200


async def test_the_core_ends_when_the_api_process_is_killed() -> None:
    async with running_engine("sim://test") as engine:
        core_pid = engine.core_pid
        assert is_running(core_pid)
        engine.process.kill()
        await engine.process.wait()
        await until(lambda: not is_running(core_pid))


async def test_both_processes_serve_the_sim_model_where_torch_can_not_be_imported(tmp_path: Path) -> None:
    for name in ("torch", "transformers", "safetensors", "triton", "kopf", "kubernetes"):
        (tmp_path / f"{name}.py").write_text(f'raise ImportError("{name} is blocked in this test")\n')
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    async with running_engine(SIM, environment={"PYTHONPATH": path}) as engine:
        text, _ = await stream_text(engine, "hello")
        for pid in (engine.process.pid, engine.core_pid):
            assert "torch" not in memory_map(pid)
    assert text


@pytest.mark.slow
async def test_memory_stays_flat_over_five_hundred_requests() -> None:
    def resident_bytes(pid: int) -> int:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async with running_engine("sim://test?step_ms=0&output_tokens=4") as engine:
        pids = (engine.process.pid, engine.core_pid)
        for i in range(150):
            assert (await engine.post("/v1/completions", prompt=f"warm {i}"))[0] == 200
        before = [resident_bytes(pid) for pid in pids]
        for i in range(500):
            assert (await engine.post("/v1/completions", prompt=f"request {i}"))[0] == 200
        after = [resident_bytes(pid) for pid in pids]
    assert [(end - start) // (8 * 1024 * 1024) for start, end in zip(before, after, strict=True)] == [0, 0]


@pytest.mark.parametrize("message", ["short", "é" * 5000, "\n" * 5000, "x" * 1990])
def test_the_termination_record_is_json_of_at_most_two_kibibytes(message: str) -> None:
    record = termination_record(Ending(exit_code=3, reason="ModelLoadFailed", message=message))
    assert len(record) <= MAX_LOG_BYTES
    decoded = json.loads(record)
    assert decoded["reason"] == "ModelLoadFailed"
    assert message.startswith(decoded["message"])
    assert decoded["message"]
