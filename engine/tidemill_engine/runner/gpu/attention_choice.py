"""Which library computes attention: the one that was asked for, or the one that is measured to be fastest.

Knows what each library can't do. Logs one line: which one computes, and why.
"""

from __future__ import annotations

import importlib.util
import logging
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.models.device_llama import Caches
from tidemill_engine.runner.gpu.attention import Sequences, TidemillAttention
from tidemill_engine.runner.gpu.attention_libraries import FLASH_BLOCK_SIZE, FlashAttention, FlashInfer
from tidemill_engine.step import IntArray, int_array
from tidemill_kernels.paged_attention.batch import AttentionOptions

if TYPE_CHECKING:
    from tidemill_engine.config import AttentionBackendName
    from tidemill_engine.parallel.group import RankGroup
    from tidemill_engine.runner.gpu.attention import AttentionBackend
    from tidemill_engine.runner.gpu.device import Device
    from tidemill_kernels.paged_attention.launch import HeadShape

logger = logging.getLogger(__name__)

_PACKAGES: dict[AttentionBackendName, str] = {"flash-attn": "flash_attn", "flashinfer": "flashinfer"}
_OURS = "our own kernel"
WORTH_IT = 0.95
"""A library must take less than this share of our kernel's time to be preferred."""
NUM_ROWS = 32
CONTEXT_TOKENS = 1024
_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class AttentionDemand:
    """What of a model and of how it is served decides who can attend; scale: of scores."""

    heads: HeadShape
    block_size: int
    scale: float
    dtype: torch.dtype
    is_narrow: bool = False
    has_graphs: bool = True


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Seconds of one layer: a decode of NUM_ROWS rows, and a prompt, of CONTEXT_TOKENS tokens each."""

    decode_seconds: float
    prefill_seconds: float

    @property
    def seconds(self) -> float:
        """Return both together, by which backends are compared."""
        return self.decode_seconds + self.prefill_seconds

    def __str__(self) -> str:
        return f"{self.decode_seconds * 1e6:.0f} + {self.prefill_seconds * 1e6:.0f} us"


def choose_backend(
    wanted: AttentionBackendName, demand: AttentionDemand, device: Device, group: RankGroup
) -> AttentionBackend:
    """Return the backend that computes; all ranks take the one that the first has chosen."""
    if wanted in _PACKAGES:
        if not _is_installed(wanted):
            raise ModelLoadError(
                f"--attention-backend {wanted}: {_PACKAGES[wanted]} is not installed", reason="InvalidConfig"
            )
        hindrance = _hindrance(wanted, demand, is_asked_for=True)
        if hindrance is not None:
            raise ModelLoadError(f"--attention-backend {wanted} {hindrance}", reason="InvalidConfig")
        logger.info("attention by %s: asked for", wanted)
        return _library(wanted, demand)
    options = AttentionOptions(scale=demand.scale)
    is_float32 = demand.dtype == torch.float32
    ours = TidemillAttention(demand.heads, options, device.gpu, is_float32=is_float32)
    if wanted == "tidemill":
        logger.info("attention by %s: asked for", _OURS)
        return ours
    return _fastest(ours, demand, device, group)


def _fastest(
    ours: TidemillAttention, demand: AttentionDemand, device: Device, group: RankGroup
) -> AttentionBackend:
    """Measure the installed libraries that can compute this, and our own kernel beside them."""
    found: dict[str, AttentionBackend] = {}
    reasons: list[str] = []
    for library in filter(_is_installed, _PACKAGES):
        hindrance = _hindrance(library, demand)
        if hindrance is None:
            found[library] = _library(library, demand)
        else:
            reasons.append(f"{library} {hindrance}")
    if not found:
        logger.info("attention by %s: %s", _OURS, "; ".join(reasons) or "no other library is installed")
        return ours
    found = {_OURS: ours, **found}
    measured: dict[str, Measured] = {}
    for name, backend in found.items():
        try:
            measured[name] = measure(backend, demand, device)
        except Exception as error:
            if name == _OURS:
                raise
            reasons.append(f"{name} fails: {type(error).__name__}: {error}")
    names = list(found)
    # What fails on one rank no rank may take. All ask in the same order.
    common = [name for name in names if group.least(int(name in measured))]
    reasons += [f"{name} fails on another rank" for name in measured if name not in common]
    best = min(common, key=lambda name: measured[name].seconds)
    if measured[best].seconds >= WORTH_IT * measured[_OURS].seconds:
        best = _OURS
    chosen = torch.tensor([names.index(best)], device=device.torch_device)
    best = names[int(group.from_first(chosen).item())]
    times = ", ".join(f"{name} {times}" for name, times in measured.items())
    logger.info(
        "attention by %s: measured, a decode of %d rows + a prompt of %d tokens: %s",
        best,
        NUM_ROWS,
        CONTEXT_TOKENS,
        "; ".join([times, *reasons]),
    )
    return found[best]


def _is_installed(name: AttentionBackendName) -> bool:
    return importlib.util.find_spec(_PACKAGES[name]) is not None


def _hindrance(
    name: AttentionBackendName, demand: AttentionDemand, *, is_asked_for: bool = False
) -> str | None:
    """Say why a library can't, or should not unless it is asked for, compute this; None if it can."""
    if demand.is_narrow:
        return "does not read a narrow KV cache with our scales; take --attention-backend tidemill"
    if demand.dtype == torch.float32:
        return "computes no float32"
    if name == "flash-attn" and demand.block_size % FLASH_BLOCK_SIZE:
        return f"needs --block-size {FLASH_BLOCK_SIZE}, not {demand.block_size}"
    if name == "flashinfer" and demand.has_graphs and not is_asked_for:
        return "captures no graphs"
    return None


def _library(name: AttentionBackendName, demand: AttentionDemand) -> AttentionBackend:
    if name == "flash-attn":
        return FlashAttention(demand.scale)
    return FlashInfer(demand.heads, demand.block_size, demand.scale)


def measure(backend: AttentionBackend, demand: AttentionDemand, device: Device) -> Measured:
    """Time a backend on the shapes of a model, each step after one that compiles what it needs."""
    ones, lengths = np.ones(NUM_ROWS, dtype=np.int32), np.full(NUM_ROWS, CONTEXT_TOKENS, dtype=np.int32)
    caches = _random_caches(demand, device)
    prompt = int_array([CONTEXT_TOKENS])
    return Measured(
        decode_seconds=_seconds(device, _step(backend, demand, caches, ones, lengths)),
        prefill_seconds=_seconds(device, _step(backend, demand, caches, prompt, prompt)),
    )


def _random_caches(demand: AttentionDemand, device: Device) -> Caches:
    """Fill one layer's cache for all rows: more than a device's own caches hold."""
    num_blocks = NUM_ROWS * -(-CONTEXT_TOKENS // demand.block_size)
    shape = (num_blocks, demand.block_size, demand.heads.num_kv_heads, demand.heads.head_dim)
    keys, values = (torch.randn(shape, dtype=demand.dtype, device=device.torch_device) for _ in range(2))
    return Caches(keys, values)


def _step(
    backend: AttentionBackend, demand: AttentionDemand, caches: Caches, new: IntArray, lengths: IntArray
) -> Callable[[], object]:
    """Lay a step out over blocks in no order, and return what attends."""
    where = caches.keys.device
    num_tokens, num_decodes = int(new.sum()), int((new == 1).sum())
    query = torch.randn(
        (num_tokens, demand.heads.num_heads, demand.heads.head_dim), dtype=demand.dtype, device=where
    )
    blocks = torch.randperm(len(caches.keys)).int().to(where).view(NUM_ROWS, -1)
    sequences = Sequences(
        block_table=blocks[: len(new)],
        seq_lens=torch.from_numpy(lengths).to(where),
        query_start_loc=torch.nn.functional.pad(torch.from_numpy(new).cumsum(0), (1, 0)).int().to(where),
    )
    planned = backend.plan(new, lengths, num_decodes)
    there = [torch.from_numpy(array).to(where) for array in planned.arrays]
    attend = planned.bind(sequences, there)
    return lambda: attend(query, caches)


def _seconds(device: Device, work: Callable[[], object]) -> float:
    """Return the median of some runs by the device's clock, after one that is not counted."""
    work()
    times = []
    for _ in range(_REPEATS):
        began = device.mark()
        work()
        ended = device.mark()
        ended.wait()
        times.append(ended.seconds_since(began))
    return statistics.median(times)
