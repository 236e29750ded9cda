from __future__ import annotations

import pytest

from engine_builders import Harness, make_request, make_scheduler, make_sim_runner
from tidemill_engine.config import CacheConfig, CoreConfig, ModelConfig
from tidemill_engine.errors import ModelLoadError
from tidemill_engine.model_uri import SimModel
from tidemill_engine.runner.sim import SimRunner, load_sim_runner
from tidemill_engine.sim_vocab import BOS, EOS, FIRST_BYTE, FIRST_WORD, PAD, TOKEN_BYTES, VOCAB_SIZE


def serve(runner: SimRunner, prompt: list[int], max_tokens: int = 200, **params: object) -> list[int]:
    harness = Harness(scheduler=make_scheduler(runner.info), runner=runner)
    harness.add(
        make_request("a", prompt=prompt, max_tokens=max_tokens, ignore_eos=False, **params)  # type: ignore[arg-type]
    )
    harness.run()
    return harness.tokens("a")


def test_the_vocabulary_spells_bytes_and_distinct_words() -> None:
    assert len(TOKEN_BYTES) == VOCAB_SIZE == 4096
    assert [TOKEN_BYTES[token] for token in (BOS, EOS, PAD)] == [b"", b"", b""]
    assert b"".join(TOKEN_BYTES[FIRST_BYTE:FIRST_WORD]) == bytes(range(256))
    words = TOKEN_BYTES[FIRST_WORD:]
    assert len(set(words)) == len(words)
    assert all(word.startswith(b" ") and word[1:].isalpha() for word in words)


def test_the_output_depends_on_the_prompt_alone() -> None:
    first = serve(make_sim_runner(), [300, 301])
    assert serve(make_sim_runner(block_size=8, num_blocks=99), [300, 301], temperature=2.0) == first
    assert serve(make_sim_runner(), [300, 302]) != first


def test_it_ends_by_itself_after_a_while_or_after_the_given_number() -> None:
    assert 16 <= len(serve(make_sim_runner(), [300, 301])) - 1 < 64
    tokens = serve(make_sim_runner(output_tokens=7), [300, 301])
    assert len(tokens) == 8
    assert tokens[-1] == EOS
    assert all(token >= FIRST_WORD for token in tokens[:-1])


def test_min_tokens_puts_the_end_off() -> None:
    assert len(serve(make_sim_runner(output_tokens=2), [300], min_tokens=9)) >= 9


def test_a_wrong_block_changes_the_output() -> None:
    runner = make_sim_runner()
    expected = serve(runner, [300] * 9, max_tokens=6)
    scheduler = make_scheduler(runner.info)
    harness = Harness(scheduler=scheduler, runner=runner)
    harness.add(make_request("a", prompt=[300] * 9, max_tokens=6, ignore_eos=False))
    harness.step()
    runner._tables.block_table[:, 0] = 60
    harness.run()
    assert harness.tokens("a")[0] == expected[0]
    assert harness.tokens("a") != expected


def test_loading_takes_its_time_reports_and_sizes_the_cache() -> None:
    slept: list[float] = []
    reports: list[tuple[int, int]] = []
    model = SimModel(name="x", startup_ms=500, num_blocks=9, max_model_len=4096)
    config = CoreConfig(model=ModelConfig(uri="sim://x"), cache=CacheConfig(block_size=4))
    runner = load_sim_runner(model, config, lambda done, total: reports.append((done, total)), slept.append)
    assert sum(slept) == pytest.approx(0.5)
    assert reports[-1][0] == reports[-1][1]
    assert (runner.info.num_blocks, runner.info.max_model_len) == (9, 36)


def test_each_step_takes_the_given_time() -> None:
    slept: list[float] = []
    info = make_sim_runner().info
    runner = SimRunner(SimModel(name="x", step_ms=20, output_tokens=3), info, num_rows=8, sleep=slept.append)
    assert len(serve(runner, [300])) == 4
    assert slept == [0.02] * 4


def test_loading_fails_when_told_to() -> None:
    config = CoreConfig(model=ModelConfig(uri="sim://x"))
    with pytest.raises(ModelLoadError, match="no luck"):
        load_sim_runner(SimModel(name="x", fail_load="no luck"), config, lambda _d, _t: None, lambda _s: None)
