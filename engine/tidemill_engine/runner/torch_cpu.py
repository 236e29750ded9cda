"""A runner on the CPU in plain torch: flat tensors per step, keys and values in blocks, one thread pool.

Knows how a step becomes tensors and tokens. Does not know why a step was chosen.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tidemill_engine.batch import Batch, RowTables, build_batch, copy_in_order, with_padding
from tidemill_engine.messages import TokenLogprobs
from tidemill_engine.model_uri import find_model_path
from tidemill_engine.models.llama import KVCache, LlamaModel, ModelInputs
from tidemill_engine.models.weights import open_weights
from tidemill_engine.runner import machine
from tidemill_engine.runner.base import RunnerInfo
from tidemill_engine.runner.kv_memory import CacheDemand, CacheSize, MemoryFacts, size_cache
from tidemill_engine.runner.sampler import RowSampling, Sampled, sample
from tidemill_engine.step import NewRow, RowFailure, StepResult, int_array
from tidemill_kernels.paged_attention import make_plan
from tidemill_kernels.paged_attention.plan import CacheLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemill_engine.config import CoreConfig
    from tidemill_engine.model_uri import BuiltinModel, FileModel
    from tidemill_engine.models.config import LlamaConfig
    from tidemill_engine.runner.base import ReportProgress
    from tidemill_engine.step import IntArray, SchedulerOutput, TokenMasks

logger = logging.getLogger(__name__)

TORCH_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_KEEP_BYTES = 1 << 30
_MANY_TOKENS = 64


def load_torch_cpu_runner(
    uri: BuiltinModel | FileModel, config: CoreConfig, report: ReportProgress
) -> TorchCpuRunner:
    """Load a model, compute one step of the full budget, and give the cache what memory is left."""
    threads = StepThreads(num_threads=machine.num_threads())
    threads.use_for(_MANY_TOKENS)
    keep_freed_memory()
    started = time.monotonic()
    source = open_weights(find_model_path(uri))
    wanted_len = config.model.max_model_len or source.config.max_model_len
    if wanted_len > source.config.max_model_len:
        logger.warning("max_model_len %d is over the model's own %d", wanted_len, source.config.max_model_len)
    max_model_len = min(wanted_len, source.config.max_model_len)
    model = LlamaModel.load(source, TORCH_DTYPES[config.model.dtype], max_model_len, report)
    logger.info("weights read after %.1f s", time.monotonic() - started)
    warm_up(model, config, threads)
    size = _cache_size(model, config, max_model_len)
    logger.info(
        "%d threads, %s, %d KV blocks of %d tokens, max_model_len %d",
        torch.get_num_threads(),
        model.dtype,
        size.num_blocks,
        config.cache.block_size,
        size.max_model_len,
    )
    info = RunnerInfo(
        vocab_size=model.config.vocab_size,
        max_model_len=size.max_model_len,
        num_blocks=size.num_blocks,
        block_size=config.cache.block_size,
        dtype=str(model.dtype).removeprefix("torch."),
        eos_token_ids=model.config.eos_token_ids,
        num_swap_blocks=config.cache.swap_bytes
        // cache_bytes_per_block(model.config, config.cache.block_size, model.dtype),
    )
    return TorchCpuRunner(model, info, num_rows=config.scheduler.max_num_seqs, threads=threads)


@dataclass(frozen=True, kw_only=True)
class StepThreads:
    """How many threads compute a step: all for a prompt; for few tokens one CPU is left to everyone else.

    A step of few tokens is hundreds of short parallel regions, and each ends with all threads waiting for
    the last. Measured on 2 CPUs beside a busy process, two threads took 5 to 10 times as long as one for a
    batch of 16.
    """

    num_threads: int

    def for_step(self, num_tokens: int) -> int:
        """Return the threads for a step of that many tokens."""
        return self.num_threads if num_tokens >= _MANY_TOKENS else max(1, self.num_threads - 1)

    def use_for(self, num_tokens: int) -> None:
        """Make torch use them."""
        wanted = self.for_step(num_tokens)
        if torch.get_num_threads() != wanted:
            torch.set_num_threads(wanted)


def keep_freed_memory() -> None:
    """Tell malloc to keep freed memory: steps reuse the same sizes, and page faults are dear."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)


def warm_up(model: LlamaModel, config: CoreConfig, threads: StepThreads) -> None:
    """Compute one step of the full token budget and one of a single token, with a passing cache."""
    block_size = config.cache.block_size
    num_tokens = min(config.scheduler.max_num_batched_tokens, config.model.max_model_len or 1 << 20)
    num_tokens = min(num_tokens, model.config.max_model_len)
    num_blocks = -(-num_tokens // block_size)
    cache = KVCache.allocate(model.config, num_blocks, block_size, model.dtype)
    tables = torch.arange(num_blocks).unsqueeze(0)
    for count in (num_tokens, 1):
        threads.use_for(count)
        positions = torch.arange(count)
        layout = CacheLayout(block_size=block_size, num_kv_heads=model.config.num_kv_heads, dtype=model.dtype)
        plan = make_plan(tables, [count], [0, count], int(count == 1), layout)
        inputs = ModelInputs(
            input_ids=torch.zeros(count, dtype=torch.int64),
            positions=positions,
            slot_mapping=positions,
            attention=plan,
        )
        with torch.inference_mode():
            model.logits(model.forward(inputs, cache)[-1:])


def cache_bytes_per_block(config: LlamaConfig, block_size: int, dtype: torch.dtype) -> int:
    """Return the bytes of one block over all layers, keys and values."""
    return 2 * config.num_layers * block_size * config.kv_size * dtype.itemsize


def _cache_size(model: LlamaModel, config: CoreConfig, max_model_len: int) -> CacheSize:
    """Size the cache by the machine or by what the user said."""
    block_size = config.cache.block_size
    facts = MemoryFacts(
        limit_bytes=machine.memory_limit_bytes(),
        available_bytes=machine.available_memory_bytes(),
        used_bytes=machine.used_memory_bytes(),
    )
    demand = CacheDemand(
        bytes_per_block=cache_bytes_per_block(model.config, block_size, model.dtype),
        block_size=block_size,
        max_num_seqs=config.scheduler.max_num_seqs,
        max_model_len=max_model_len,
    )
    size = size_cache(
        facts, demand, num_blocks=config.cache.num_blocks, memory_bytes=config.cache.memory_bytes
    )
    if size.max_model_len < max_model_len:
        logger.warning(
            "max_model_len falls from %d to %d: the KV cache of %d blocks holds no more (%s)",
            max_model_len,
            size.max_model_len,
            size.num_blocks,
            facts,
        )
    return size


@dataclass(frozen=True, kw_only=True)
class _LaunchedStep:
    """A step between `launch` and `sample`."""

    step_id: int
    batch: Batch
    logits: torch.Tensor
    copy_seconds: float


class TorchCpuRunner:
    """Runs a model's steps one after another."""

    def __init__(self, model: LlamaModel, info: RunnerInfo, *, num_rows: int, threads: StepThreads) -> None:
        self._model = model
        self._info = info
        self._threads = threads
        self._layout = CacheLayout(
            block_size=info.block_size, num_kv_heads=model.config.num_kv_heads, dtype=model.dtype
        )
        self._cache = KVCache.allocate(model.config, info.num_blocks + 1, info.block_size, model.dtype)
        self._swap = KVCache.allocate(model.config, info.num_swap_blocks, info.block_size, model.dtype)
        self._tables = RowTables(
            num_rows=num_rows + 1, max_tokens_per_row=info.max_model_len, block_size=info.block_size
        )
        self._padding_row = num_rows
        self._tables.block_table[num_rows] = info.num_blocks  # a block that the scheduler does not know
        self._rows: list[NewRow | None] = [None] * num_rows
        self._launched: deque[_LaunchedStep] = deque()

    @property
    def info(self) -> RunnerInfo:
        """Return what was loaded."""
        return self._info

    @torch.inference_mode()
    def launch(self, output: SchedulerOutput) -> None:
        """Do a step's copies and compute it up to its logits."""
        self._threads.use_for(output.num_tokens)
        copy_seconds = self._copy(output)
        self._tables.apply(output)
        for new_row in output.new_rows:
            self._rows[new_row.row] = new_row
        batch = build_batch(output, self._tables)
        batch = with_padding(
            batch, output.num_padding_tokens, output.num_padding_pairs, padding_row=self._padding_row
        )
        hidden = self._model.forward(self._inputs(batch), self._cache)
        logits = self._model.logits(hidden[torch.from_numpy(batch.logit_tokens)])
        self._launched.append(
            _LaunchedStep(step_id=output.step_id, batch=batch, logits=logits, copy_seconds=copy_seconds)
        )

    @torch.inference_mode()
    def sample(self, masks: TokenMasks | None) -> StepResult:
        """Choose the tokens of the oldest launched step."""
        step = self._launched.popleft()
        if masks is not None and len(masks.rows):
            raise NotImplementedError("grammar masks are not applied yet")
        rows = step.batch.logit_rows
        lengths = step.batch.positions[step.batch.logit_tokens] + 1
        samplings = [self._sampling(int(row), int(length)) for row, length in zip(rows, lengths, strict=True)]
        return self._result(step, sample(step.logits, samplings))

    def _copy(self, output: SchedulerOutput) -> float:
        """Do a step's copies in their order and return the seconds that they took."""
        if not (len(output.swap_out) or len(output.swap_in) or len(output.block_copies)):
            return 0.0
        started = time.monotonic()
        copy_in_order(output.swap_out, _copier(self._cache, self._swap))
        copy_in_order(output.swap_in, _copier(self._swap, self._cache))
        copy_in_order(output.block_copies, _copier(self._cache, self._cache))
        return time.monotonic() - started

    def _inputs(self, batch: Batch) -> ModelInputs:
        """Turn a batch's arrays into tensors and plan its attention."""
        max_blocks = -(-int(batch.seq_lens.max()) // batch.block_size)
        tables = torch.from_numpy(batch.block_table[batch.row_index, :max_blocks].astype(np.int64))
        plan = make_plan(
            tables,
            batch.seq_lens.tolist(),
            batch.query_start_loc.tolist(),
            batch.num_decodes,
            self._layout,
        )
        return ModelInputs(
            input_ids=torch.from_numpy(batch.input_ids),
            positions=torch.from_numpy(batch.positions),
            slot_mapping=torch.from_numpy(batch.slot_mapping),
            attention=plan,
        )

    def _sampling(self, row: int, length: int) -> RowSampling:
        """Return how the token after a row's first `length` tokens is chosen."""
        request = self._rows[row]
        if request is None:
            raise RuntimeError(f"row {row} computes tokens but was never started")
        end_token_ids = set(request.sampling.stop_token_ids)
        if not request.sampling.ignore_eos:
            end_token_ids |= self._info.eos_token_ids
        return RowSampling(
            sampling=request.sampling,
            token_ids=self._tables.token_ids[row, :length],
            num_prompt_tokens=request.num_prompt_tokens,
            seed=request.seed,
            sibling=request.sibling,
            end_token_ids=tuple(token for token in sorted(end_token_ids) if token < self._info.vocab_size),
        )

    def _result(self, step: _LaunchedStep, sampled: Sampled) -> StepResult:
        """Put the tokens into the tables and into the step's result; rows without numbers fail alone."""
        rows = step.batch.logit_rows
        is_valid = np.asarray(sampled.is_valid, dtype=np.bool_)
        tokens = int_array(sampled.token_ids)
        self._tables.append_tokens(rows[is_valid], tokens[is_valid])
        failures = tuple(
            RowFailure(row=int(row), message="the model's output is not a number (NaN)")
            for row in rows[~is_valid]
        )
        logprobs: dict[int, tuple[TokenLogprobs, ...]] = {
            int(rows[index]): (found,) for index, found in sampled.logprobs.items()
        }
        return StepResult(
            step_id=step.step_id,
            copy_seconds=step.copy_seconds,
            rows=rows[is_valid],
            token_ids=tokens[is_valid].reshape(-1, 1),
            num_accepted=np.ones(int(is_valid.sum()), dtype=np.int32),
            failures=failures,
            logprobs=logprobs,
        )


def _copier(source: KVCache, target: KVCache) -> Callable[[IntArray, IntArray], None]:
    """Return what copies blocks from one cache to another."""

    def copy(sources: IntArray, targets: IntArray) -> None:
        target.take_from(
            source, torch.from_numpy(sources.astype(np.int64)), torch.from_numpy(targets.astype(np.int64))
        )

    return copy
