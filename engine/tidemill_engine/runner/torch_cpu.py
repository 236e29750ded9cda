"""A runner on the CPU in plain torch: for float32, and where the C++ kernels can't be had.

Knows how a step becomes tensors and logits. Does not know why a step was chosen.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tidemill_engine.model_uri import find_model_path
from tidemill_engine.models.llama import KVCache, LlamaModel, ModelInputs
from tidemill_engine.models.weights import open_weights
from tidemill_engine.parallel.group import join_group
from tidemill_engine.runner import machine
from tidemill_engine.runner.base import RunnerInfo
from tidemill_engine.runner.cpu import BlockCopies, Computed, CpuRunner, LaunchedStep
from tidemill_engine.runner.memory import (
    bytes_of_wider_steps,
    choose_cache_size,
    choose_max_model_len,
    keep_freed_memory,
    machine_budget,
)
from tidemill_engine.runner.sampler import Sampled
from tidemill_kernels.paged_attention import make_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemill_engine.batch import Batch
    from tidemill_engine.config import CoreConfig
    from tidemill_engine.model_uri import BuiltinModel, FileModel
    from tidemill_engine.models.config import LlamaConfig
    from tidemill_engine.parallel.membership import Membership
    from tidemill_engine.runner.base import ReportProgress
    from tidemill_engine.step import IntArray

logger = logging.getLogger(__name__)

TORCH_DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_MANY_TOKENS = 64


def load_torch_cpu_runner(
    uri: BuiltinModel | FileModel,
    config: CoreConfig,
    report: ReportProgress,
    membership: Membership | None = None,
) -> TorchCpuRunner:
    """Load a model or a rank's part, compute a full step, and give the cache what memory is left."""
    threads = StepThreads(num_threads=max(1, machine.num_threads() // config.device.tensor_parallel_size))
    threads.use_for(_MANY_TOKENS)
    keep_freed_memory()
    started = time.monotonic()
    source = open_weights(find_model_path(uri))
    max_model_len = choose_max_model_len(config.model.max_model_len, source.config.max_model_len)
    group = join_group(membership, torch.device("cpu"))
    model = LlamaModel.load(source, TORCH_DTYPES[config.model.dtype], max_model_len, report, group)
    logger.info("weights read after %.1f s", time.monotonic() - started)
    warm_up(model, config, threads)
    later_bytes = bytes_of_wider_steps(config.scheduler, model.config, max_model_len)
    bytes_per_block = group.total(cache_bytes_per_block(model.config, config.cache.block_size, model.dtype))
    budget = machine_budget(config, group, later_bytes)
    size = choose_cache_size(config, budget, bytes_per_block, max_model_len)
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
        num_swap_blocks=config.cache.swap_bytes // bytes_per_block,
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


def warm_up(model: LlamaModel, config: CoreConfig, threads: StepThreads) -> None:
    """Compute one step of the longest chunk and one of a single token, with a passing cache."""
    block_size = config.cache.block_size
    num_tokens = min(config.scheduler.chunk_tokens, config.model.max_model_len or 1 << 20)
    num_tokens = min(num_tokens, model.config.max_model_len)
    num_blocks = -(-num_tokens // block_size)
    cache = KVCache.allocate(model.config, num_blocks, block_size, model.dtype)
    tables = np.arange(num_blocks)[None]
    for count in (num_tokens, 1):
        threads.use_for(count)
        positions = torch.arange(count)
        plan = make_plan(tables, [count], [0, count], block_size)
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


class TorchCpuRunner(CpuRunner):
    """Computes steps with torch's operators, one after another."""

    def __init__(self, model: LlamaModel, info: RunnerInfo, *, num_rows: int, threads: StepThreads) -> None:
        self._model = model
        self._threads = threads
        self._cache = KVCache.allocate(model.config, info.num_blocks + 1, info.block_size, model.dtype)
        self._swap = KVCache.allocate(model.config, info.num_swap_blocks, info.block_size, model.dtype)
        copies = BlockCopies(
            swap_out=_copier(self._cache, self._swap),
            swap_in=_copier(self._swap, self._cache),
            within=_copier(self._cache, self._cache),
        )
        super().__init__(info, copies, num_rows=num_rows)

    @torch.inference_mode()
    def _compute(self, batch: Batch, *, wants_logits: bool) -> Computed:  # noqa: ARG002 - they are there anyway
        """Compute a step up to its logits."""
        self._threads.use_for(len(batch.input_ids))
        hidden = self._model.forward(self._inputs(batch), self._cache)
        logits = self._model.logits(hidden[torch.from_numpy(batch.logit_tokens)])
        return Computed(logits=logits.numpy())

    def _chosen(self, step: LaunchedStep) -> Sampled:
        """Let rank 0 choose; the other ranks take its tokens, -1 where a row has none."""
        group = self._model.group
        if group.shard.size == 1:
            return super()._chosen(step)
        if group.shard.rank == 0:
            own = super()._chosen(step)
            said = [token if valid else -1 for token, valid in zip(own.token_ids, own.is_valid, strict=True)]
            group.from_first(torch.tensor(said, dtype=torch.int64))
            return own
        said = group.from_first(torch.empty(len(step.batch.logit_rows), dtype=torch.int64)).tolist()
        return Sampled(token_ids=said, is_valid=[token >= 0 for token in said], logprobs={})

    def _inputs(self, batch: Batch) -> ModelInputs:
        """Turn a batch's arrays into tensors and plan its attention."""
        max_blocks = -(-int(batch.seq_lens.max()) // batch.block_size)
        plan = make_plan(
            batch.block_table[batch.row_index, :max_blocks],
            batch.seq_lens.tolist(),
            batch.query_start_loc.tolist(),
            batch.block_size,
        )
        return ModelInputs(
            input_ids=torch.from_numpy(batch.input_ids),
            positions=torch.from_numpy(batch.positions),
            slot_mapping=torch.from_numpy(batch.slot_mapping),
            attention=plan,
        )


def _copier(source: KVCache, target: KVCache) -> Callable[[IntArray, IntArray], None]:
    """Return what copies blocks from one cache to another."""

    @torch.inference_mode()
    def copy(sources: IntArray, targets: IntArray) -> None:
        target.take_from(
            source, torch.from_numpy(sources.astype(np.int64)), torch.from_numpy(targets.astype(np.int64))
        )

    return copy
