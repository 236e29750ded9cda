"""A runner without a model: deterministic tokens from what its paged cache holds, at a given time per step.

The next token is a hash of all tokens before it, read back through the block table. So chunks, batches and
preemption can't change it, and a block given to two rows at once would. Knows no torch; sampling parameters
other than lengths and end tokens change nothing.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.batch import Batch, RowTables, build_batch
from tidemill_engine.errors import ModelLoadError
from tidemill_engine.messages import SamplingParams, TokenLogprobs
from tidemill_engine.runner.base import RunnerInfo
from tidemill_engine.sim_vocab import EOS, FIRST_WORD, VOCAB_SIZE
from tidemill_engine.step import IntArray, StepResult, int_array

if TYPE_CHECKING:
    from tidemill_engine.config import CoreConfig
    from tidemill_engine.model_uri import SimModel
    from tidemill_engine.runner.base import ReportProgress
    from tidemill_engine.step import SchedulerOutput, TokenMasks

logger = logging.getLogger(__name__)

_SHORTEST_OUTPUT = 16
_OUTPUT_SPREAD = 48
_STARTUP_REPORTS = 10

Sleep = Callable[[float], None]


def load_sim_runner(
    model: SimModel, config: CoreConfig, report: ReportProgress, sleep: Sleep = time.sleep
) -> SimRunner:
    """Pretend to load: take the given time, then fail if told so."""
    for done in range(_STARTUP_REPORTS):
        report(done, _STARTUP_REPORTS)
        sleep(model.startup_ms / 1000 / _STARTUP_REPORTS)
    if model.fail_load is not None:
        raise ModelLoadError(model.fail_load)
    report(_STARTUP_REPORTS, _STARTUP_REPORTS)
    num_blocks = config.cache.num_blocks or model.num_blocks
    longest = min(config.model.max_model_len or model.max_model_len, model.max_model_len)
    capacity = num_blocks * config.cache.block_size
    if capacity < longest:
        logger.warning("max_model_len falls from %d to %d: the KV cache holds no more", longest, capacity)
    info = RunnerInfo(
        vocab_size=VOCAB_SIZE,
        max_model_len=min(longest, capacity),
        num_blocks=num_blocks,
        block_size=config.cache.block_size,
        dtype="sim",
        eos_token_ids=frozenset({EOS}),
    )
    return SimRunner(model, info, num_rows=config.scheduler.max_num_seqs, sleep=sleep)


class SimRunner:
    """Keeps tokens where a model would keep keys and values: `cache [num_blocks * block_size]`."""

    def __init__(
        self, model: SimModel, info: RunnerInfo, *, num_rows: int, sleep: Sleep = time.sleep
    ) -> None:
        self._model = model
        self._info = info
        self._sleep = sleep
        self._tables = RowTables(
            num_rows=num_rows, max_tokens_per_row=info.max_model_len, block_size=info.block_size
        )
        self._cache = np.zeros(info.num_blocks * info.block_size, dtype=np.int32)
        self._sampling: list[SamplingParams | None] = [None] * num_rows
        self._num_prompt_tokens = np.zeros(num_rows, dtype=np.int32)
        self._launched: deque[tuple[int, Batch]] = deque()

    @property
    def info(self) -> RunnerInfo:
        """Return what was loaded."""
        return self._info

    def launch(self, output: SchedulerOutput) -> None:
        """Write the step's tokens into the cache."""
        self._tables.apply(output)
        for new_row in output.new_rows:
            self._sampling[new_row.row] = new_row.sampling
            self._num_prompt_tokens[new_row.row] = new_row.num_prompt_tokens
        batch = build_batch(output, self._tables)
        self._cache[batch.slot_mapping] = batch.input_ids
        self._launched.append((output.step_id, batch))

    def sample(self, masks: TokenMasks | None) -> StepResult:
        """Take the step's time and hash each row's context into its next token."""
        if masks is not None and len(masks.rows):
            raise NotImplementedError("the sim model follows no grammar")
        step_id, batch = self._launched.popleft()
        self._sleep(self._model.step_ms / 1000)
        lengths = batch.positions[batch.logit_tokens] + 1
        tokens = int_array(
            [
                self._next_token(int(row), int(length))
                for row, length in zip(batch.logit_rows, lengths, strict=True)
            ]
        )
        self._tables.append_tokens(batch.logit_rows, tokens)
        return StepResult(
            step_id=step_id,
            rows=batch.logit_rows,
            token_ids=tokens.reshape(-1, 1),
            num_accepted=np.ones_like(tokens),
            logprobs=self._logprobs(batch.logit_rows, tokens),
        )

    def _next_token(self, row: int, length: int) -> int:
        """Return the token after the first `length` tokens of a row."""
        context = self._read_back(row, length)
        num_prompt_tokens = int(self._num_prompt_tokens[row])
        num_outputs = length - num_prompt_tokens
        sampling = self._sampling[row]
        may_end = sampling is None or num_outputs >= sampling.min_tokens
        if may_end and num_outputs >= self._output_length(context[:num_prompt_tokens]):
            return EOS
        return FIRST_WORD + zlib.crc32(context.tobytes()) % (VOCAB_SIZE - FIRST_WORD)

    def _read_back(self, row: int, length: int) -> IntArray:
        """Return a row's first tokens as the cache holds them."""
        positions = np.arange(length)
        block_ids = self._tables.block_table[row, positions // self._info.block_size].astype(np.int64)
        slots = block_ids * self._info.block_size + positions % self._info.block_size
        return int_array(self._cache[slots])

    def _output_length(self, prompt: IntArray) -> int:
        """Return how many words answer a prompt."""
        if self._model.output_tokens is not None:
            return self._model.output_tokens
        return _SHORTEST_OUTPUT + zlib.crc32(prompt.tobytes()) % _OUTPUT_SPREAD

    def _logprobs(self, rows: IntArray, tokens: IntArray) -> dict[int, tuple[TokenLogprobs, ...]]:
        """Return certainty for those who ask: nothing else could have come."""
        wanted: dict[int, tuple[TokenLogprobs, ...]] = {}
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            sampling = self._sampling[row]
            if sampling is not None and sampling.num_logprobs is not None:
                wanted[row] = (TokenLogprobs(token_ids=[token], logprobs=[0.0]),)
        return wanted
