"""How near each kernel comes to what the device can do: bytes or FLOPs a second over the measured peaks.

Bytes are those that must be read and written at least once. Beside attention stands torch's own (SDPA) over
the same keys and values laid out without blocks; beside products, torch's in the model's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from tidemill_bench.gpu_check.paged import PagedCase
from tidemill_bench.gpu_check.place import Place
from tidemill_kernels.paged_attention.batch import AttentionOptions
from tidemill_kernels.paged_attention.launch import HeadShape
from tidemill_kernels.rms_norm.triton_kernel import add_rms_norm
from tidemill_kernels.rope_kv_write import QkvLayout, Rotation
from tidemill_kernels.rope_kv_write.triton_kernel import rope_kv_write
from tidemill_kernels.sampler import Drawing
from tidemill_kernels.sampler.triton_kernel import sample
from tidemill_kernels.silu_mul.triton_kernel import silu_mul
from tidemill_kernels.weight_quant import PackedInt4, ScaledWeight
from tidemill_kernels.weight_quant.triton_kernel import int4_linear, scaled_linear


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One kernel at one size. fraction: of the measured peak of what bounds it, `bytes` or `FLOPs`."""

    name: str
    seconds: float
    bound: str
    fraction: float
    peer: str = ""
    peer_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    heads: HeadShape
    hidden: int
    intermediate: int
    vocab: int
    decodes: tuple[tuple[int, int], ...]
    prefills: tuple[int, ...]
    tokens: int


_FULL = _Sizes(
    heads=HeadShape(num_heads=32, num_kv_heads=8, head_dim=128),
    hidden=4096,
    intermediate=14_336,
    vocab=128_256,
    decodes=((1, 8192), (1, 65_536), (64, 2048), (256, 1024), (256, 4096)),
    prefills=(2048, 8192),
    tokens=4096,
)
_TINY = _Sizes(
    heads=HeadShape(num_heads=4, num_kv_heads=2, head_dim=16),
    hidden=64,
    intermediate=96,
    vocab=100,
    decodes=((2, 20),),
    prefills=(20,),
    tokens=3,
)


def time_kernels(place: Place) -> list[Timed]:
    """Time everything, one after another."""
    sizes = _TINY if place.is_rehearsal else _FULL
    return [*_decodes(place, sizes), *_prefills(place, sizes), *_rows(place, sizes), *_products(place, sizes)]


def _decodes(place: Place, sizes: _Sizes) -> Iterator[Timed]:
    for num_rows, context in sizes.decodes:
        case = PagedCase.make([(context - 1, 1)] * num_rows, sizes.heads, place.dtype, place.torch_device)
        numbers = 2 * num_rows * context * sizes.heads.num_kv_heads
        name = f"decode, {num_rows} rows of {context} tokens"
        num_bytes = numbers * sizes.heads.head_dim * place.dtype.itemsize
        yield _timed_attention(place, case, name, num_bytes, None)
    for kind in place.narrow_dtypes:
        caches, scales = case.narrowed(kind)
        options = AttentionOptions(scale=1 / math.sqrt(sizes.heads.head_dim))
        seconds = place.seconds(case.attending(place.device.gpu, options, caches, scales))
        read = numbers * (sizes.heads.head_dim + scales[0].element_size())
        yield Timed(
            name=f"{name}, {str(kind).removeprefix('torch.')} cache",
            seconds=seconds,
            bound="bytes",
            fraction=read / seconds / place.copy_bytes_per_second,
        )


def _prefills(place: Place, sizes: _Sizes) -> Iterator[Timed]:
    for length in sizes.prefills:
        case = PagedCase.make([(0, length)], sizes.heads, place.dtype, place.torch_device)
        pairs = length * (length + 1) / 2
        flops = 4 * pairs * sizes.heads.num_heads * sizes.heads.head_dim
        yield _timed_attention(place, case, f"prefill of {length} tokens", None, flops)


def _timed_attention(
    place: Place, case: PagedCase, name: str, num_bytes: float | None, flops: float | None
) -> Timed:
    """Time our attention, and SDPA over the same numbers side by side: `[n, heads, tokens, dim]`."""
    options = AttentionOptions(scale=1 / math.sqrt(case.heads.head_dim))
    ours = place.seconds(case.attending(place.device.gpu, options))
    parts = [case.gathered(index) for index in range(len(case.sequences))]
    query, keys, values = (
        torch.stack([part[kind] for part in parts]).transpose(1, 2).contiguous() for kind in range(3)
    )
    causal = query.shape[2] > 1
    peer = place.seconds(
        lambda: torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, is_causal=causal, enable_gqa=True
        )
    )
    fraction = (
        num_bytes / ours / place.copy_bytes_per_second
        if num_bytes is not None
        else (flops or 0.0) / ours / place.product_flops
    )
    return Timed(
        name=name,
        seconds=ours,
        bound="bytes" if num_bytes is not None else "FLOPs",
        fraction=fraction,
        peer="SDPA",
        peer_seconds=peer,
    )


def _rows(place: Place, sizes: _Sizes) -> Iterator[Timed]:
    where, n, heads = place.torch_device, sizes.tokens, sizes.heads

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=where).to(place.dtype)

    def streamed(name: str, elements: float, work: Callable[[], object]) -> Timed:
        seconds = place.seconds(work)
        fraction = elements * place.dtype.itemsize / seconds / place.copy_bytes_per_second
        return Timed(name=name, seconds=seconds, bound="bytes", fraction=fraction)

    x, residual, weight = normal(n, sizes.hidden), normal(n, sizes.hidden), normal(sizes.hidden)
    yield streamed(
        f"add and RMS norm, {n} tokens",
        4 * n * sizes.hidden,
        lambda: add_rms_norm(x, residual, weight, 1e-5),
    )
    both = normal(n, 2 * sizes.intermediate)
    yield streamed(f"SiLU and product, {n} tokens", 3 * n * sizes.intermediate, lambda: silu_mul(both))
    layout = QkvLayout(num_heads=heads.num_heads, num_kv_heads=heads.num_kv_heads, head_dim=heads.head_dim)
    angles = torch.randn(n, heads.head_dim // 2, device=where)
    rotation = Rotation(cos=angles.cos(), sin=angles.sin())
    places, qkv = torch.arange(n, device=where), normal(n, layout.width)
    caches = [normal(-(-n // 16), 16, heads.num_kv_heads, heads.head_dim) for _ in range(2)]
    yield streamed(
        f"rotation and KV write, {n} tokens",
        2 * n * layout.width,
        lambda: rope_kv_write(qkv, places, places, (caches[0], caches[1]), layout, rotation),
    )
    yield from _samplers(place, sizes, streamed)


def _samplers(
    place: Place, sizes: _Sizes, streamed: Callable[[str, float, Callable[[], object]], Timed]
) -> Iterator[Timed]:
    where, rows = place.torch_device, 2 if place.is_rehearsal else 256
    logits = torch.randn(rows, sizes.vocab, device=where).to(place.dtype)
    for name, temperature, top_p in (("greedy", 0.0, 1.0), ("drawn", 1.0, 1.0), ("top-p 0.9", 1.0, 0.9)):
        drawing = Drawing(
            temperature=torch.full((rows,), temperature, device=where),
            top_k=torch.zeros(rows, dtype=torch.int32, device=where),
            top_p=torch.full((rows,), top_p, device=where),
            min_p=torch.zeros(rows, device=where),
            seed=torch.arange(rows, dtype=torch.int64, device=where),
            position=torch.zeros(rows, dtype=torch.int32, device=where),
        )
        label = f"sampler, {name}, {rows} rows"
        yield streamed(label, logits.numel(), lambda drawing=drawing: sample(logits, drawing))  # type: ignore[misc]


def _products(place: Place, sizes: _Sizes) -> Iterator[Timed]:
    where = place.torch_device
    shape = (2 * sizes.intermediate, sizes.hidden)
    plain = torch.randn(shape, device=where).to(place.dtype)
    for name, held in _held(shape, place):
        num_bytes = sum(part.nbytes for part in vars(held).values() if isinstance(part, torch.Tensor))
        product = scaled_linear if isinstance(held, ScaledWeight) else int4_linear
        for num_tokens in (1, 3) if place.is_rehearsal else (1, 16, 256):
            x = torch.randn(num_tokens, sizes.hidden, device=where).to(place.dtype)
            ours = place.seconds(lambda x=x, held=held, product=product: product(x, held))  # type: ignore[misc]
            peer = place.seconds(lambda x=x: torch.nn.functional.linear(x, plain))  # type: ignore[misc]
            yield Timed(
                name=f"product, {name} weights, {num_tokens} tokens",
                seconds=ours,
                bound="bytes",
                fraction=num_bytes / ours / place.copy_bytes_per_second,
                peer="torch, unquantised",
                peer_seconds=peer,
            )


def _held(shape: tuple[int, int], place: Place) -> Iterator[tuple[str, ScaledWeight | PackedInt4]]:
    """Return weights of 8 and 4 bits, their numbers meaning nothing."""
    where, (outputs, inputs) = place.torch_device, shape
    for kind in place.narrow_dtypes:
        weight = (torch.randn(shape, device=where) * 20).to(kind)
        yield (
            str(kind).removeprefix("torch."),
            ScaledWeight(weight=weight, scale=torch.rand(outputs, device=where)),
        )
    group = 32 if place.is_rehearsal else 128

    def words(*size: int) -> torch.Tensor:
        return torch.randint(-(2**31), 2**31 - 1, size, dtype=torch.int64, device=where).int()

    for layout, size in (("awq", (inputs, outputs // 8)), ("gptq", (inputs // 8, outputs))):
        yield (
            layout,
            PackedInt4(
                words=words(*size),
                zeros=words(inputs // group, outputs // 8),
                scales=torch.rand(inputs // group, outputs, device=where).half(),
                group_size=group,
                layout="awq" if layout == "awq" else "gptq",
            ),
        )
