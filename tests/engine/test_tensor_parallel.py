"""One model over several processes: the same tokens as in one, and an end in order when one of them dies."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import device_rank
from api_builders import parse_events, read_event
from core_process import CoreProcess
from engine_builders import make_harness, make_request
from engine_process import is_running, running_engine, until
from quantized_models import save_quantized
from tidemill_engine.config import CacheConfig, CoreConfig, DeviceConfig, ModelConfig, SchedulerConfig
from tidemill_engine.ipc import FrameConnection, socket_pair
from tidemill_engine.messages import CoreFailed, RequestOutput, Shutdown, TokenLogprobs
from tidemill_engine.models.sharding import Shard
from tidemill_engine.parallel import ranks
from tidemill_engine.parallel.group import join_group
from tidemill_engine.parallel.membership import Membership
from tidemill_engine.parallel.orders import RankFailed, decode_step, encode_step
from tiny_models import prompts_of, save_model

MARGIN = 1e-4
SLOW = "sim://test?step_ms=50&output_tokens=4000"
TWO = ("--tensor-parallel-size", "2")


def test_a_step_crosses_to_another_rank_as_it_is() -> None:
    harness = make_harness(num_blocks=12, num_swap_blocks=8, max_num_batched_tokens=8)
    for name in ("a", "b", "c"):
        harness.add(make_request(name, prompt_len=9, max_tokens=12, logit_bias={3: 1.5}, stop_token_ids=(7,)))
    harness.run()
    assert any(len(step.block_appends.rows) for step in harness.steps)
    for step in harness.steps:
        assert repr(decode_step(encode_step(step))) == repr(step)


def test_only_arrays_of_the_contract_cross() -> None:
    with pytest.raises(NotImplementedError, match="ndarray"):
        encode_step(np.zeros(2))  # type: ignore[arg-type]


class StubbornProcess:
    """Does not end by itself; waiting for it takes the test's time, not ours."""

    def __init__(self, clock: SimpleNamespace) -> None:
        self._clock = clock
        self.is_killed = False

    def wait(self, timeout: float) -> int:
        self._clock.now += timeout
        raise subprocess.TimeoutExpired("rank", timeout)

    def kill(self) -> None:
        self.is_killed = True


def test_ranks_that_hang_together_are_waited_for_as_long_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: clock.now))
    processes, started, theirs = [StubbornProcess(clock) for _ in range(7)], [], []
    for number, process in enumerate(processes, start=1):
        ours, other = socket_pair()
        theirs.append(other)
        connection = FrameConnection(ours, RankFailed)
        started.append(ranks._Rank(number=number, process=process, socket=ours, connection=connection))  # type: ignore[arg-type]
    failures: list[RankFailed] = []
    ranks.Ranks(started, socket.create_server(("127.0.0.1", 0)), failures.append).close()
    for end in (*theirs, *(rank.socket for rank in started)):
        end.close()
    assert clock.now == ranks.EXIT_SECONDS
    assert all(process.is_killed for process in processes)
    assert not failures


def test_the_socket_where_ranks_meet_stays_its_owners() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = Membership(shard=Shard(size=1), port=listener.getsockname()[1], listener_fd=listener.fileno())
        assert join_group(place, torch.device("cpu")).total(3) == 3
        torch.distributed.destroy_process_group()
        gc.collect()
        assert os.fstat(listener.fileno()).st_nlink == 1


def greedy(uri: str, size: int, prompts: list[list[int]], num_tokens: int = 8) -> list[list[TokenLogprobs]]:
    """Return each prompt's tokens from a core of so many ranks, all prompts in one batch, in float32."""
    config = CoreConfig(
        model=ModelConfig(uri=uri, dtype="float32", max_model_len=128),
        cache=CacheConfig(num_blocks=64, block_size=4),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=16),
        device=DeviceConfig(tensor_parallel_size=size),
    )
    core = CoreProcess(config)
    try:
        assert core.wait_ready().num_blocks == 64
        core.send(
            *(
                make_request(
                    str(index), prompt=prompt, max_tokens=num_tokens, temperature=0.0, num_logprobs=2
                )
                for index, prompt in enumerate(prompts)
            )
        )
        for index in range(len(prompts)):
            core.wait_finish(str(index))
        outputs = [m for m in core.messages if isinstance(m, RequestOutput)]
        core.send(Shutdown())
        assert core.process.wait(20) == 0
    finally:
        core.close()
    return [
        [entry for output in outputs if output.request_id == str(index) for entry in output.logprobs]
        for index in range(len(prompts))
    ]


def assert_same(one: list[list[TokenLogprobs]], many: list[list[TokenLogprobs]]) -> None:
    """Fail unless the tokens are the same, up to a place where two were as good."""
    for wanted, found in zip(one, many, strict=True):
        assert len(found) == len(wanted) == 8
        for right, said in zip(wanted, found, strict=True):
            best = sorted(right.logprobs[1:])
            if right.token_ids[0] != said.token_ids[0]:
                assert best[-1] - best[-2] < MARGIN
                break
            np.testing.assert_allclose(said.logprobs[0], right.logprobs[0], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "changes", "size"),
    [
        ("Llama", {"num_attention_heads": 4, "num_key_value_heads": 2}, 2),
        ("Qwen2", {"num_attention_heads": 4, "num_key_value_heads": 1, "tie_word_embeddings": True}, 2),
        ("Qwen3", {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}, 3),
    ],
    ids=["two ranks", "two ranks share the only key-value head", "three ranks"],
)
def test_greedy_tokens_are_those_of_one_process(
    tmp_path: Path, family: str, changes: dict[str, object], size: int
) -> None:
    save_model(tmp_path, family, **{"hidden_size": 48, "intermediate_size": 60, **changes})
    prompts, uri = prompts_of(1, 3, 9, 40), f"file://{tmp_path}"
    assert_same(greedy(uri, 1, prompts), greedy(uri, size, prompts))


@pytest.mark.real_model
def test_three_ranks_of_the_real_model_choose_the_tokens_of_one(english_token_ids: list[int]) -> None:
    prompts = [english_token_ids[:20], english_token_ids[50:57]]
    uri = "builtin://smollm2-135m"
    assert_same(greedy(uri, 1, prompts), greedy(uri, 3, prompts))


@pytest.mark.slow
@pytest.mark.parametrize("method", [None, "awq"])
def test_ranks_on_the_kernels_for_gpus_choose_the_tokens_of_one(tmp_path: Path, method: str | None) -> None:
    if method is None:
        directory = tmp_path
        save_model(directory, "Llama", num_attention_heads=4, num_key_value_heads=2)
    else:
        directory, _ = save_quantized(tmp_path, method)

    def started(rank: int, size: int, port: int) -> subprocess.Popen[str]:
        command = [sys.executable, device_rank.__file__, str(directory), str(rank), str(size), str(port)]
        path = os.pathsep.join(sys.path)
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes = [started(0, 1, 0), started(0, 2, port), started(1, 2, port)]
    answers = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    alone, *others = (json.loads(answer.splitlines()[-1]) for answer in answers)
    assert [len(tokens) for tokens in alone] == [4, 4]
    assert others == [alone, alone]


@pytest.mark.slow
def test_a_model_that_does_not_divide_is_refused_with_the_sizes_that_do(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama", num_attention_heads=4, num_key_value_heads=2)
    config = CoreConfig(
        model=ModelConfig(uri=f"file://{tmp_path}"), device=DeviceConfig(tensor_parallel_size=3)
    )
    core = CoreProcess(config)
    try:
        failed = core.wait_for(lambda message: isinstance(message, CoreFailed))
        assert isinstance(failed, CoreFailed)
        assert failed.reason == "InvalidConfig"
        assert failed.message.endswith("sizes that do: 1, 2, 4")
        assert core.process.wait(20) in {3, 4}
    finally:
        core.close()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["rank 0", "rank 1"])
async def test_a_killed_rank_ends_streams_with_an_error_and_the_engine(victim: str) -> None:
    async with running_engine(SLOW, *TWO) as engine:
        (rank_pid,) = engine.rank_pids
        body = {"prompt": "x", "max_tokens": 3000, "stream": True, "ignore_eos": True}
        async with engine.session.post(engine.url + "/v1/completions", json=body) as response:
            await read_event(response)
            os.kill(engine.core_pid if victim == "rank 0" else rank_pid, signal.SIGKILL)
            events = parse_events(await response.read())
            code = await engine.exit_code()
        await until(lambda: not is_running(rank_pid) and not is_running(engine.core_pid))
        log = "\n".join(engine.lines)
    assert events[-1]["error"]["code"] == "engine_died"
    assert code == 4
    assert victim == "rank 0" or "rank 1 has ended unexpectedly: SIGKILL" in log


@pytest.mark.slow
async def test_an_idle_engine_ends_when_a_rank_is_killed() -> None:
    async with running_engine(SLOW, *TWO) as engine:
        os.kill(engine.rank_pids[0], signal.SIGKILL)
        assert await engine.exit_code() == 4


@pytest.mark.slow
async def test_all_ranks_end_when_the_engine_is_told_to() -> None:
    async with running_engine(SLOW, *TWO, "--drain-grace", "0") as engine:
        pids = [engine.core_pid, *engine.rank_pids]
        engine.process.terminate()
        assert await engine.exit_code() == 0
        await until(lambda: not any(is_running(pid) for pid in pids))
    assert "unexpectedly" not in "\n".join(engine.lines)
