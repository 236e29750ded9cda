"""A runner on the CPU with the C++ kernels: one call computes a whole step. Imports no torch.

Knows how a step becomes arrays. Does not know how they are computed, nor why a step was chosen.
"""

from __future__ import annotations

import logging
import mmap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.model_uri import find_model_path
from tidemill_engine.models.native import held_formats, load_weights, shape_of
from tidemill_engine.models.weights import open_weights
from tidemill_engine.runner import machine
from tidemill_engine.runner.backing import CacheBacking
from tidemill_engine.runner.base import RunnerInfo
from tidemill_engine.runner.cpu import BlockCopies, Computed, CpuRunner
from tidemill_engine.runner.memory import (
    OwnNumbers,
    bytes_of_wider_steps,
    choose_cache_size,
    choose_max_model_len,
    keep_freed_memory,
    machine_budget,
)
from tidemill_engine.step import int_array
from tidemill_kernels.native.build import CompilerMissingError, find_library
from tidemill_kernels.native.cpu import best_path
from tidemill_kernels.native.engine import NativeEngine, StepArrays
from tidemill_kernels.native.library import Draw, load_library
from tidemill_kernels.native.tuning import tune

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from tidemill_engine.batch import Batch
    from tidemill_engine.config import CoreConfig
    from tidemill_engine.model_uri import BuiltinModel, FileModel
    from tidemill_engine.models.weights import StoredWeights
    from tidemill_engine.runner.base import ReportProgress
    from tidemill_engine.runner.sampler import Floats, RowSampling
    from tidemill_engine.step import IntArray, SchedulerOutput

logger = logging.getLogger(__name__)

_HUGE_PAGES_FROM_BYTES = 8 << 20
_STEPS_AHEAD = 2
"""Memory is backed ahead of its use for what so many of the widest steps can write."""


def find_kernels(config: CoreConfig) -> Path | None:
    """Return the library to compute with; None where torch is to do it: as told, for float32, or of need."""
    if config.model.kernels == "torch":
        return None
    if config.model.dtype == "float32":
        return None
    path = best_path(config.model.kernels)
    if path is None:
        if config.model.kernels != "auto":
            raise ModelLoadError(
                f"this CPU can't run the {config.model.kernels} kernels", reason="InvalidConfig"
            )
        logger.warning("there are no kernels for this CPU: torch computes, several times slower")
        return None
    try:
        return find_library(path)
    except CompilerMissingError as error:
        logger.warning("%s: torch computes, several times slower", error)
        return None


def load_native_runner(
    uri: BuiltinModel | FileModel, config: CoreConfig, library: Path, report: ReportProgress
) -> NativeRunner:
    """Load a model, compute one step of the longest chunk, and give the cache what memory is left."""
    keep_freed_memory()
    started = time.monotonic()
    source = open_weights(find_model_path(uri))
    max_model_len = choose_max_model_len(config.model.max_model_len, source.config.max_model_len)
    engine = load_engine(source, config, library, max_model_len, report)
    logger.info("weights in place after %.1f s", time.monotonic() - started)
    tune(engine, library)
    warm_up(engine, config, max_model_len)
    later_bytes = bytes_of_wider_steps(config.scheduler, source.config, max_model_len)
    bytes_per_block = 4 * source.config.num_layers * engine.block_elements
    budget = machine_budget(config, OwnNumbers(), later_bytes)
    size = choose_cache_size(config, budget, bytes_per_block, max_model_len)
    logger.info(
        "%s, %d threads, %s weights, %d KV blocks of %d tokens, max_model_len %d after %.1f s",
        library.name,
        machine.num_threads(),
        engine.shape.weights,
        size.num_blocks,
        config.cache.block_size,
        size.max_model_len,
        time.monotonic() - started,
    )
    info = RunnerInfo(
        vocab_size=source.config.vocab_size,
        max_model_len=size.max_model_len,
        num_blocks=size.num_blocks,
        block_size=config.cache.block_size,
        dtype=config.model.quantization or "bfloat16",
        eos_token_ids=source.config.eos_token_ids,
        num_swap_blocks=config.cache.swap_bytes // bytes_per_block,
    )
    step_blocks = -(-config.scheduler.max_num_batched_tokens // config.cache.block_size)
    return NativeRunner(
        engine, info, num_rows=config.scheduler.max_num_seqs, ahead_blocks=_STEPS_AHEAD * step_blocks
    )


def load_engine(
    source: StoredWeights, config: CoreConfig, library: Path, max_model_len: int, report: ReportProgress
) -> NativeEngine:
    """Make the engine and fill it."""
    weights, head = held_formats(
        source, config.model.quantization, machine.memory_limit_bytes() or machine.available_memory_bytes()
    )
    shape = shape_of(
        source.config,
        block_size=config.cache.block_size,
        max_positions=max_model_len,
        weights=weights,
        head=head,
    )
    engine = NativeEngine(load_library(library), shape, machine.num_threads())
    load_weights(engine, source, report)
    return engine


def warm_up(engine: NativeEngine, config: CoreConfig, max_model_len: int) -> None:
    """Compute one step of the longest chunk with a passing cache."""
    count = min(config.scheduler.chunk_tokens, max_model_len)
    num_blocks = -(-count // config.cache.block_size)
    cache = NativeCache(engine.shape.num_layers, num_blocks, engine.block_elements)
    arrays = StepArrays(
        token_ids=np.zeros(count, dtype=np.int32),
        positions=np.arange(count, dtype=np.int32),
        starts=np.array([0, count], dtype=np.int32),
        lengths=np.array([count], dtype=np.int32),
        row_index=np.zeros(1, dtype=np.int32),
        block_table=np.arange(num_blocks, dtype=np.int32).reshape(1, -1),
        logit_tokens=np.array([count - 1], dtype=np.int32),
    )
    engine.step(arrays, cache.key_addresses, cache.value_addresses, wants_logits=True)


class NativeCache:
    """Keys and values per layer: each `[num_blocks, block_elements]` bfloat16, laid out by the C++ kernels.

    The system backs the memory as it is first used.
    """

    def __init__(self, num_layers: int, num_blocks: int, block_elements: int) -> None:
        shape = (num_blocks, block_elements)
        self._keys = [_lazy_zeros(shape) for _ in range(num_layers)]
        self._values = [_lazy_zeros(shape) for _ in range(num_layers)]
        self.arrays = [*self._keys, *self._values]
        self.key_addresses = _addresses(self._keys)
        self.value_addresses = _addresses(self._values)

    def take_from(self, other: NativeCache, sources: IntArray, targets: IntArray) -> None:
        """Copy whole blocks of all layers from another cache, or from this one."""
        for mine, theirs in zip(self.arrays, other.arrays, strict=True):
            mine[targets] = theirs[sources]


def _lazy_zeros(shape: tuple[int, int]) -> npt.NDArray[np.uint16]:
    """Return zeros that take no memory until they are written."""
    num_bytes = 2 * shape[0] * shape[1]
    if num_bytes == 0:
        return np.zeros(shape, dtype=np.uint16)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if num_bytes >= _HUGE_PAGES_FROM_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint16).reshape(shape)


def _addresses(arrays: list[npt.NDArray[np.uint16]]) -> npt.NDArray[np.uint64]:
    """Return where arrays lie."""
    return np.array([array.ctypes.data for array in arrays], dtype=np.uint64)


class NativeRunner(CpuRunner):
    """Computes each step with one call."""

    def __init__(self, engine: NativeEngine, info: RunnerInfo, *, num_rows: int, ahead_blocks: int) -> None:
        self.engine = engine
        self.draw_all = self._draw_all
        blocks = (engine.shape.num_layers, info.num_blocks + 1, engine.block_elements)
        self._cache = NativeCache(*blocks)
        self._backing = CacheBacking(self._cache.arrays, ahead_blocks=ahead_blocks)
        self._written = int_array()
        self._swap = NativeCache(engine.shape.num_layers, info.num_swap_blocks, engine.block_elements)
        copies = BlockCopies(
            swap_out=_copier(self._cache, self._swap),
            swap_in=_copier(self._swap, self._cache),
            within=_copier(self._cache, self._cache),
        )
        super().__init__(info, copies, num_rows=num_rows)

    def launch(self, output: SchedulerOutput) -> None:
        """Do a step's copies and compute it up to its logits; beside that memory is backed for later ones.

        It follows the step before: between steps it would hold up that one's tokens.
        """
        self._backing.note(self._written)
        super().launch(output)
        self._written = output.block_appends.block_ids

    def _compute(self, batch: Batch, *, wants_logits: bool) -> Computed:
        """Compute a step up to its logits."""
        arrays = StepArrays(
            token_ids=batch.input_ids.astype(np.int32),
            positions=batch.positions.astype(np.int32),
            starts=np.ascontiguousarray(batch.query_start_loc),
            lengths=np.ascontiguousarray(batch.seq_lens),
            row_index=np.ascontiguousarray(batch.row_index),
            block_table=batch.block_table,
            logit_tokens=batch.logit_tokens.astype(np.int32),
        )
        cache = self._cache
        best, is_valid, logits = self.engine.step(
            arrays, cache.key_addresses, cache.value_addresses, wants_logits=wants_logits
        )
        return Computed(logits=logits, best=best, is_valid=is_valid)

    def _draw_all(self, logits: Floats, places: list[int], rows: list[RowSampling]) -> list[int]:
        """Draw for all rows at once."""
        if not rows:
            return []
        draws = [
            Draw(
                temperature=row.sampling.temperature,
                min_p=row.sampling.min_p,
                top_p=row.sampling.top_p,
                top_k=row.sampling.top_k,
                number=row.number,
            )
            for row in rows
        ]
        tokens: list[int] = self.engine.draw(logits, np.array(places, dtype=np.int32), draws).tolist()
        return tokens


def _copier(source: NativeCache, target: NativeCache) -> Callable[[IntArray, IntArray], None]:
    """Return what copies blocks from one cache to another."""
    return lambda sources, targets: target.take_from(source, sources, targets)
