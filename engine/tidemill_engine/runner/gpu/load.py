"""Loads a model onto a device: weights, one step of the full budget, the cache by what is left, graphs."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from tidemill_engine.errors import ModelLoadError
from tidemill_engine.models.device_llama import CacheShape, DeviceCache, DeviceInputs, DeviceLlama
from tidemill_engine.models.llama_weights import Placement, load_llama_weights
from tidemill_engine.parallel.group import join_group
from tidemill_engine.runner.base import RunnerInfo
from tidemill_engine.runner.gpu.attention import Sequences
from tidemill_engine.runner.gpu.attention_choice import AttentionDemand, choose_backend
from tidemill_engine.runner.gpu.device import CudaDevice
from tidemill_engine.runner.gpu.graphs import graph_sizes
from tidemill_engine.runner.gpu.linears import FP8_CAPABILITY, CheckpointLinears, linear_maker
from tidemill_engine.runner.gpu.memory import GRAPH_BYTES, DeviceBudget
from tidemill_engine.runner.gpu.rows import DeviceRows
from tidemill_engine.runner.gpu.runner import DeviceParts, DeviceRunner
from tidemill_engine.runner.gpu.swap import STAGING_BYTES
from tidemill_engine.runner.memory import choose_cache_size, choose_max_model_len
from tidemill_engine.step import int_array
from tidemill_kernels.paged_attention.launch import Gpu, HeadShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemill_engine.config import CoreConfig, SchedulerConfig
    from tidemill_engine.models.weights import WeightSource
    from tidemill_engine.parallel.group import RankGroup
    from tidemill_engine.parallel.membership import Membership
    from tidemill_engine.runner.base import ReportProgress
    from tidemill_engine.runner.gpu.device import Device

logger = logging.getLogger(__name__)

DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}
LEAST_CAPABILITY = 80
"""Triton compiles for no older ones, and they have no bfloat16."""
DEPTH = 2
"""Steps in flight: the next one is launched while the device computes one."""


def has_gpu(config: CoreConfig) -> bool:
    """Say whether torch sees a GPU; where one was asked for and is not there, raise."""
    if torch.cuda.is_available():
        return True
    if config.device.name == "cuda":
        raise ModelLoadError("--device cuda: torch sees no GPU here", reason="InvalidConfig")
    logger.warning(
        "there is a GPU driver, but torch sees no GPU: the CPU computes, in steps of a GPU's size unless "
        "--max-num-batched-tokens and --block-size are given; --device cpu takes a CPU's"
    )
    return False


def load_cuda_runner(
    source: WeightSource, config: CoreConfig, report: ReportProgress, membership: Membership | None = None
) -> DeviceRunner:
    """Load a model, or a rank's part of it, onto the rank's GPU."""
    rank = membership.shard.rank if membership is not None else 0
    if rank >= torch.cuda.device_count():
        raise ModelLoadError(
            f"tensor_parallel_size {config.device.tensor_parallel_size} needs as many GPUs; "
            f"{torch.cuda.device_count()} are visible",
            reason="InvalidConfig",
        )
    device = CudaDevice(rank)
    return load_device_runner(source, config, device, join_group(membership, device.torch_device), report)


def load_device_runner(
    source: WeightSource, config: CoreConfig, device: Device, group: RankGroup, report: ReportProgress
) -> DeviceRunner:
    """Load a model onto any device."""
    if device.gpu.capability < LEAST_CAPABILITY:
        raise ModelLoadError(
            f"GPUs before compute capability {LEAST_CAPABILITY / 10} are not supported; this one has "
            f"{device.gpu.capability / 10}",
            reason="InvalidConfig",
        )
    if config.scheduler.kind != "continuous":
        raise ModelLoadError(
            f"a GPU computes no padded batches: {config.scheduler.kind}", reason="InvalidConfig"
        )
    started = time.monotonic()
    max_model_len = choose_max_model_len(config.model.max_model_len, source.config.max_model_len)
    model = DeviceLlama(
        load_llama_weights(source, _placement(source, config, device, group), report), max_model_len, group
    )
    logger.info("weights in place after %.1f s", time.monotonic() - started)
    heads = HeadShape(
        num_heads=model.config.num_heads,
        num_kv_heads=model.config.num_kv_heads,
        head_dim=model.config.head_dim,
    )
    shape = CacheShape(
        config=model.config, block_size=config.cache.block_size, dtype=_kv_dtype(config, model, device.gpu)
    )
    demand = AttentionDemand(
        heads=heads,
        block_size=shape.block_size,
        scale=model.scale,
        dtype=model.weights.embedding.dtype,
        is_narrow=shape.is_narrow,
        has_graphs=config.device.has_graphs,
    )
    with torch.inference_mode():
        attention = choose_backend(config.device.attention_backend, demand, device, group)
    parts = DeviceParts(model=model, device=device, attention=attention, cache_shape=shape)
    captures = config.device.has_graphs and attention.can_capture
    sizes = graph_sizes(config.scheduler.max_num_seqs) if captures else ()
    info = _with_cache(parts, config, max_model_len, sizes)
    return DeviceRunner(parts, info, num_rows=config.scheduler.max_num_seqs, graph_sizes=sizes)


def _placement(source: WeightSource, config: CoreConfig, device: Device, group: RankGroup) -> Placement:
    """Say how weights are wanted: a quantised checkpoint's matrices as they are."""
    dtype, wanted = DTYPES[config.model.dtype], config.model.quantization
    if wanted is not None and source.quantization is not None:
        raise ModelLoadError(
            f"--quantization {wanted}: the checkpoint is quantised already, as {source.quantization}; "
            "it is computed as it is without the flag",
            reason="InvalidConfig",
        )
    return Placement(
        dtype=dtype,
        device=device.torch_device,
        shard=group.shard,
        make_linear=linear_maker(wanted, device.gpu),
        make_quantized=CheckpointLinears(device.torch_device, dtype, device.gpu).make,
    )


def _kv_dtype(config: CoreConfig, model: DeviceLlama, gpu: Gpu) -> torch.dtype:
    """Return the dtype of cached keys and values; raise where the device has no such."""
    wanted = config.cache.dtype
    if wanted == "auto":
        return model.weights.embedding.dtype
    if wanted == "fp8" and gpu.capability < FP8_CAPABILITY:
        raise ModelLoadError(
            f"--kv-cache-dtype fp8 needs a GPU of compute capability 8.9, not {gpu.capability / 10}; "
            "int8 takes as little memory",
            reason="InvalidConfig",
        )
    return torch.int8 if wanted == "int8" else torch.float8_e4m3fn


def _with_cache(
    parts: DeviceParts, config: CoreConfig, max_model_len: int, captured: Sequence[int]
) -> RunnerInfo:
    """Compute one step of the full budget, see what memory is left, and size the cache by it."""
    model, device, shape = parts.model, parts.device, parts.cache_shape
    block_size, local = config.cache.block_size, model.config
    device.memory()  # what loading took at its worst is no matter
    _profile(parts, longest_step(config.scheduler, max_model_len), config.scheduler.max_num_seqs)
    budget = DeviceBudget(
        memory=device.memory(),
        usable_share=config.cache.memory_utilization,
        graph_bytes=GRAPH_BYTES if captured else 0,
        later_bytes=_later_bytes(parts, config, max_model_len, max(captured, default=0)),
    )
    size = choose_cache_size(config, budget, shape.block_bytes, max_model_len)
    # Ranks may see a little more or less free memory; all must have as many blocks.
    num_blocks = model.group.least(size.num_blocks)
    logger.info("%s: %d KV blocks of %d tokens by %s", device.torch_device, num_blocks, block_size, budget)
    return RunnerInfo(
        vocab_size=local.vocab_size,
        max_model_len=min(size.max_model_len, num_blocks * block_size),
        num_blocks=num_blocks,
        block_size=block_size,
        dtype=str(model.weights.embedding.dtype).removeprefix("torch."),
        eos_token_ids=local.eos_token_ids,
        num_swap_blocks=config.cache.swap_bytes // model.group.total(shape.block_bytes),
        depth=DEPTH,
        compiles_late=device.compiles_late,
    )


def _later_bytes(parts: DeviceParts, config: CoreConfig, max_model_len: int, largest_graph: int) -> int:
    """Return what is allocated once the cache is there."""
    rows = DeviceRows.num_bytes(config.scheduler.max_num_seqs, max_model_len, config.cache.block_size)
    # Graphs compute logits in memory of their own before they copy them to where all leave theirs.
    logits = 2 * largest_graph * parts.model.config.vocab_size * parts.model.weights.embedding.dtype.itemsize
    staging = 2 * min(STAGING_BYTES, config.cache.swap_bytes)
    return rows + logits + staging


def longest_step(scheduler: SchedulerConfig, max_model_len: int) -> list[int]:
    """Return the tokens that the largest step takes of each prompt: of several where none is as long."""
    left = min(scheduler.step_tokens(max_model_len), scheduler.max_num_seqs * max_model_len)
    return [min(max_model_len, left - start) for start in range(0, left, max_model_len)]


@torch.inference_mode()
def _profile(parts: DeviceParts, lengths: list[int], max_num_seqs: int) -> None:
    """Compute prompts of these lengths with a passing cache, and the logits of the largest batch."""
    model, device, shape = parts.model, parts.device, parts.cache_shape
    where, num_each = device.torch_device, -(-max(lengths) // shape.block_size)
    cache = DeviceCache(shape, num_each * len(lengths), where)
    planned = parts.attention.plan(int_array(lengths), int_array(lengths), 0)
    table = torch.arange(num_each * len(lengths), dtype=torch.int32, device=where).view(len(lengths), -1)
    sequences = Sequences(
        block_table=table,
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=where),
        query_start_loc=torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32, device=where),
    )
    positions = torch.cat([torch.arange(length, device=where) for length in lengths])
    first = torch.arange(len(lengths), device=where) * num_each * shape.block_size
    inputs = DeviceInputs(
        input_ids=torch.zeros_like(positions),
        positions=positions,
        slot_mapping=positions + first.repeat_interleave(torch.tensor(lengths, device=where)),
        attend=planned.bind(sequences, [torch.from_numpy(array).to(where) for array in planned.arrays]),
    )
    hidden = model.forward(inputs, cache)
    num_rows = min(sum(lengths), max_num_seqs)
    model.logits(hidden[:num_rows]).float()
