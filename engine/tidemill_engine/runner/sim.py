"""A runner without a model: deterministic tokens from what its paged cache holds, at a given time per step.

The next token is a hash of all tokens before it, read back through the block table. So chunks, batches,
cached prefixes, swaps and preemption can't change it, and a block given to two rows at once would: then a
slot holds another token or position than it should, and the row fails. Siblings of a prompt go different
ways. Knows no torch; sampling parameters other than lengths and end tokens change nothing.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.batch import Batch, RowTables, build_batch, copy_in_order
from tidemill_engine.errors import ModelLoadError
from tidemill_engine.messages import SamplingParams, TokenLogprobs
from tidemill_engine.runner.base import RunnerInfo
from tidemill_engine.sim_vocab import EOS, FIRST_WORD, VOCAB_SIZE
from tidemill_engine.step import IntArray, RowFailure, StepResult, int_array

if TYPE_CHECKING:
    from tidemill_engine.config import CoreConfig
    from tidemill_engine.model_uri import SimModel
    from tidemill_engine.runner.base import ReportProgress
    from tidemill_engine.step import SchedulerOutput, TokenMasks

logger = logging.getLogger(__name__)

_SHORTEST_OUTPUT = 16
_OUTPUT_SPREAD = 48
_STARTUP_REPORTS = 10
_EMPTY = -1

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
        num_swap_blocks=_num_swap_blocks(model, config, num_blocks),
        depth=model.depth,
    )
    return SimRunner(model, info, num_rows=config.scheduler.max_num_seqs, sleep=sleep)


def _num_swap_blocks(model: SimModel, config: CoreConfig, num_blocks: int) -> int:
    """Return the size of the CPU pool: as told, else as many as the cache has where swapping is wanted."""
    if model.num_swap_blocks is not None:
        return model.num_swap_blocks
    return num_blocks if config.cache.swap_bytes else 0


class _SlotStore:
    """What a model would keep as keys and values: each slot's token and the position it stands at."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.token_ids = np.zeros((num_blocks, block_size), dtype=np.int32)
        self.positions = np.full((num_blocks, block_size), _EMPTY, dtype=np.int32)

    def take_from(self, other: _SlotStore, sources: IntArray, targets: IntArray) -> None:
        """Copy whole blocks."""
        self.token_ids[targets] = other.token_ids[sources]
        self.positions[targets] = other.positions[sources]


@dataclass(frozen=True, kw_only=True)
class _Row:
    """What the runner was told of a row's request."""

    sampling: SamplingParams
    num_prompt_tokens: int
    sibling: int


class SimRunner:
    """Keeps tokens and positions where a model would keep keys and values, and believes nothing else."""

    def __init__(
        self, model: SimModel, info: RunnerInfo, *, num_rows: int, sleep: Sleep = time.sleep
    ) -> None:
        self._model = model
        self._info = info
        self._sleep = sleep
        self._tables = RowTables(
            num_rows=num_rows, max_tokens_per_row=info.max_model_len, block_size=info.block_size
        )
        self._cache = _SlotStore(info.num_blocks, info.block_size)
        self._swap = _SlotStore(info.num_swap_blocks, info.block_size)
        self._rows: list[_Row | None] = [None] * num_rows
        self._launched: deque[StepResult] = deque()

    @property
    def info(self) -> RunnerInfo:
        """Return what was loaded."""
        return self._info

    def launch(self, output: SchedulerOutput) -> None:
        """Do the step's copies, write its tokens into the cache and work out what follows them."""
        self._copy(output)
        self._tables.apply(output)
        for new_row in output.new_rows:
            self._rows[new_row.row] = _Row(
                sampling=new_row.sampling,
                num_prompt_tokens=new_row.num_prompt_tokens,
                sibling=new_row.sibling,
            )
        batch = build_batch(output, self._tables)
        self._cache.token_ids.reshape(-1)[batch.slot_mapping] = batch.input_ids
        self._cache.positions.reshape(-1)[batch.slot_mapping] = batch.positions
        self._launched.append(self._compute(output.step_id, batch))

    def sample(self, masks: TokenMasks | None) -> StepResult:
        """Take the step's time and return the tokens of the oldest launched step."""
        if masks is not None and len(masks.rows):
            raise NotImplementedError("the sim model follows no grammar")
        self._sleep(self._model.step_ms / 1000)
        return self._launched.popleft()

    def _copy(self, output: SchedulerOutput) -> None:
        """Do the step's copies in their order."""
        cache, swap = self._cache, self._swap
        copy_in_order(output.swap_out, lambda sources, targets: swap.take_from(cache, sources, targets))
        copy_in_order(output.swap_in, lambda sources, targets: cache.take_from(swap, sources, targets))
        copy_in_order(output.block_copies, lambda sources, targets: cache.take_from(cache, sources, targets))

    def _compute(self, step_id: int, batch: Batch) -> StepResult:
        """Hash each row's context into its next token; a row whose context is not its own fails."""
        rows: list[int] = []
        tokens: list[int] = []
        failures: list[RowFailure] = []
        lengths = batch.positions[batch.logit_tokens] + 1
        for row, length in zip(batch.logit_rows.tolist(), lengths.tolist(), strict=True):
            context = self._read_back(row, length)
            if isinstance(context, RowFailure):
                failures.append(context)
                continue
            rows.append(row)
            tokens.append(self._next_token(row, context))
        self._tables.append_tokens(int_array(rows), int_array(tokens))
        return StepResult(
            step_id=step_id,
            rows=int_array(rows),
            token_ids=int_array(tokens).reshape(-1, 1),
            num_accepted=np.ones(len(rows), dtype=np.int32),
            failures=tuple(failures),
            logprobs=self._logprobs(rows, tokens),
        )

    def _next_token(self, row: int, context: IntArray) -> int:
        """Return the token after a row's context."""
        told = self._rows[row]
        if told is None:
            raise RuntimeError(f"row {row} computes tokens but was never started")
        num_outputs = len(context) - told.num_prompt_tokens
        may_end = num_outputs >= told.sampling.min_tokens
        if may_end and num_outputs >= self._output_length(context[: told.num_prompt_tokens]):
            return EOS
        return FIRST_WORD + zlib.crc32(context.tobytes(), told.sibling) % (VOCAB_SIZE - FIRST_WORD)

    def _read_back(self, row: int, length: int) -> IntArray | RowFailure:
        """Return a row's first tokens as the cache holds them, or what is wrong with what it holds."""
        num_blocks = -(-length // self._info.block_size)
        block_ids = self._tables.block_table[row, :num_blocks]
        context = int_array(self._cache.token_ids[block_ids].reshape(-1)[:length])
        positions = self._cache.positions[block_ids].reshape(-1)[:length]
        wrong = (positions != np.arange(length)) | (context != self._tables.token_ids[row, :length])
        if not wrong.any():
            return context
        first = int(np.argmax(wrong))
        block_id = int(block_ids[first // self._info.block_size])
        message = (
            f"the KV cache is spoilt: block {block_id} holds token {context[first]} of position "
            f"{positions[first]} where row {row} has token {self._tables.token_ids[row, first]} of {first}"
        )
        logger.error("%s", message)
        return RowFailure(row=row, message=message)

    def _output_length(self, prompt: IntArray) -> int:
        """Return how many words answer a prompt."""
        if self._model.output_tokens is not None:
            return self._model.output_tokens
        return _SHORTEST_OUTPUT + zlib.crc32(prompt.tobytes()) % _OUTPUT_SPREAD

    def _logprobs(self, rows: list[int], tokens: list[int]) -> dict[int, tuple[TokenLogprobs, ...]]:
        """Return certainty for those who ask: nothing else could have come."""
        wanted: dict[int, tuple[TokenLogprobs, ...]] = {}
        for row, token in zip(rows, tokens, strict=True):
            told = self._rows[row]
            if told is not None and told.sampling.num_logprobs is not None:
                wanted[row] = (TokenLogprobs(token_ids=[token], logprobs=[0.0]),)
        return wanted
