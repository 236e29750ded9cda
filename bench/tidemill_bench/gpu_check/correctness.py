"""Every kernel on the device against plain torch, in dtypes which the interpreter can't be trusted with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from tidemill_bench.gpu_check.paged import PagedCase
from tidemill_bench.gpu_check.place import Place
from tidemill_kernels.block_copy.reference import copy_blocks_reference
from tidemill_kernels.block_copy.triton_kernel import copy_blocks
from tidemill_kernels.paged_attention.batch import AttentionOptions
from tidemill_kernels.paged_attention.launch import HeadShape
from tidemill_kernels.rms_norm import rms_norm_reference
from tidemill_kernels.rms_norm.triton_kernel import add_rms_norm
from tidemill_kernels.rope_kv_write import QkvLayout, Rotation
from tidemill_kernels.rope_kv_write.reference import rope_kv_write_reference
from tidemill_kernels.rope_kv_write.triton_kernel import rope_kv_write
from tidemill_kernels.sampler import Drawing
from tidemill_kernels.sampler.reference import allowed_reference
from tidemill_kernels.sampler.triton_kernel import sample
from tidemill_kernels.silu_mul import silu_mul_reference
from tidemill_kernels.silu_mul.triton_kernel import silu_mul
from tidemill_kernels.weight_quant import PackedInt4, ScaledWeight
from tidemill_kernels.weight_quant.reference import int4_linear_reference, scaled_linear_reference
from tidemill_kernels.weight_quant.triton_kernel import int4_linear, scaled_linear

_TOLERANCE = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@dataclass(frozen=True, kw_only=True)
class Checked:
    """One comparison: the largest difference, of numbers of about 1, and what it may be."""

    name: str
    worst: float
    tolerance: float
    error: str = ""

    @property
    def is_right(self) -> bool:
        """Say whether the kernel agrees; numbers that are none do not."""
        return not self.error and self.worst <= self.tolerance


def check_kernels(place: Place) -> list[Checked]:
    """Run every comparison; one that raises is wrong, and the others go on."""
    dtypes = (torch.float32,) if place.is_rehearsal else (torch.bfloat16, torch.float16)
    found = []
    for dtype in dtypes:
        for name, compare in _comparisons(place, dtype):
            found.append(_checked(f"{name}, {str(dtype).removeprefix('torch.')}", compare, _TOLERANCE[dtype]))
    return found


Compare = Callable[[], tuple[torch.Tensor, torch.Tensor]]


def _checked(name: str, compare: Compare, tolerance: float) -> Checked:
    try:
        found, wanted = compare()
        difference = (found.float() - wanted.float()).abs() / wanted.float().abs().clamp(min=1.0)
        worst = float(difference.max()) if bool(found.float().isfinite().all()) else math.inf
    except Exception as error:
        return Checked(
            name=name, worst=math.inf, tolerance=tolerance, error=f"{type(error).__name__}: {error}"[:500]
        )
    return Checked(name=name, worst=worst, tolerance=tolerance)


def _comparisons(place: Place, dtype: torch.dtype) -> Iterator[tuple[str, Compare]]:
    yield from _attention(place, dtype)
    yield from _rows(place, dtype)
    yield from _products(place, dtype)
    yield "sampler", lambda: _sampled(place, dtype)
    yield "block copy", lambda: _copied(place, dtype)


def _attention(place: Place, dtype: torch.dtype) -> Iterator[tuple[str, Compare]]:
    heads = HeadShape(num_heads=4, num_kv_heads=2, head_dim=16) if place.is_rehearsal else _LLAMA_HEADS
    gpu = place.device.gpu
    long, chunk = (40, 9) if place.is_rehearsal else (5000, 700)
    mixed = [(long, 1), (0, 1), (3, chunk), (0, 17)]
    decodes = [(long, 1), (5, 1)]
    plain = AttentionOptions(scale=1 / math.sqrt(heads.head_dim))
    special = AttentionOptions(scale=plain.scale, window=20, soft_cap=2.0)

    def compare(sequences: list[tuple[int, int]], options: AttentionOptions) -> Compare:
        case = PagedCase.make(sequences, heads, dtype, place.torch_device)
        return lambda: (case.attending(gpu, options)(), case.dense(options))

    yield "attention, mixed step", compare(mixed, plain)
    yield "attention, decode over parts", compare(decodes, plain)
    yield "attention, window and soft cap", compare(mixed, special)
    for kind in place.narrow_dtypes:
        yield f"attention, {kind} cache", lambda kind=kind: _narrow(place, heads, dtype, kind)  # type: ignore[misc]


_LLAMA_HEADS = HeadShape(num_heads=32, num_kv_heads=8, head_dim=128)


def _narrow(
    place: Place, heads: HeadShape, dtype: torch.dtype, kind: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend over a cache of 8 bits, and over what its numbers stand for."""
    case = PagedCase.make([(70, 1), (0, 9)], heads, dtype, place.torch_device)
    caches, scales = case.narrowed(kind)
    options = AttentionOptions(scale=1 / math.sqrt(heads.head_dim))
    return case.attending(place.device.gpu, options, caches, scales)(), case.dense(options)


def _rows(place: Place, dtype: torch.dtype) -> Iterator[tuple[str, Compare]]:
    where, size = place.torch_device, 96 if place.is_rehearsal else 4096

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=where).to(dtype)

    def norm() -> tuple[torch.Tensor, torch.Tensor]:
        x, residual, weight = normal(7, size), normal(7, size), normal(size)
        total = x + residual
        return add_rms_norm(x, residual, weight, 1e-5), rms_norm_reference(total, weight, 1e-5)

    def gate() -> tuple[torch.Tensor, torch.Tensor]:
        x = normal(5, 7 * size)
        return silu_mul(x), silu_mul_reference(x)

    def rotate() -> tuple[torch.Tensor, torch.Tensor]:
        layout = QkvLayout(num_heads=4, num_kv_heads=2, head_dim=size // 32 * 2)
        angles = torch.randn(50, layout.head_dim // 2, device=where)
        rotation = Rotation(cos=angles.cos(), sin=angles.sin())
        places = torch.tensor([0, 49, 7, 8], device=where), torch.tensor([5, -1, 0, 11], device=where)
        caches = [torch.zeros(3, 4, 2, layout.head_dim, dtype=dtype, device=where) for _ in range(4)]
        qkv = normal(4, layout.width)
        query = rope_kv_write(qkv, *places, (caches[0], caches[1]), layout, rotation)
        wanted = rope_kv_write_reference(qkv, *places, (caches[2], caches[3]), layout, rotation)
        ours, theirs = (
            torch.cat([part.flatten() for part in parts])
            for parts in ((query, *caches[:2]), (wanted, *caches[2:]))
        )
        return ours, theirs

    yield "add and RMS norm", norm
    yield "SiLU and product", gate
    yield "rotation and KV write", rotate


def _products(place: Place, dtype: torch.dtype) -> Iterator[tuple[str, Compare]]:
    where, size = place.torch_device, 64 if place.is_rehearsal else 1024

    def scaled(kind: torch.dtype, group: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        x = (torch.randn(17, size, device=where) / size**0.5).to(dtype)
        weight = (torch.randn(2 * size, size, device=where) * 20).to(kind)
        scales = (2 * size,) if group is None else (size // group, 2 * size)
        packed = ScaledWeight(weight=weight, scale=torch.rand(scales, device=where) / 20, group_size=group)
        return scaled_linear(x, packed), scaled_linear_reference(x, packed)

    def words(*shape: int) -> torch.Tensor:
        return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int64, device=where).int()

    def int4(layout: str) -> tuple[torch.Tensor, torch.Tensor]:
        x = (torch.randn(3, size, device=where) / size**0.5).to(dtype)
        shape = (size, size // 8) if layout == "awq" else (size // 8, size)
        packed = PackedInt4(
            words=words(*shape),
            zeros=words(size // 32, size // 8),
            scales=(torch.rand(size // 32, size, device=where) / 8).to(dtype),
            group_size=32,
            layout="awq" if layout == "awq" else "gptq",
        )
        return int4_linear(x, packed), int4_linear_reference(x, packed)

    for kind in place.narrow_dtypes:
        yield f"product, {kind} weights", lambda kind=kind: scaled(kind)  # type: ignore[misc]
        yield f"product, {kind} weights in groups", lambda kind=kind: scaled(kind, 32)  # type: ignore[misc]
    for layout in ("awq", "gptq"):
        yield f"product, {layout} weights", lambda layout=layout: int4(layout)  # type: ignore[misc]


def _sampled(place: Place, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw, and return each row's uniform number and the nearest one that its token stands for."""
    where, rows, vocab = place.torch_device, 6, 100 if place.is_rehearsal else 128_256
    logits = (torch.randn(rows, vocab, device=where) * 3).to(dtype)
    drawing = Drawing(
        temperature=torch.tensor([0.0, 1.0, 0.7, 1.5, 1.0, 0.3], device=where),
        top_k=torch.tensor([0, 0, 50, 5, 0, 0], dtype=torch.int32, device=where),
        top_p=torch.tensor([1.0, 1.0, 0.9, 1.0, 0.5, 1.0], device=where),
        min_p=torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 0.1], device=where),
        seed=torch.arange(rows, dtype=torch.int64, device=where),
        position=torch.arange(rows, dtype=torch.int32, device=where),
    )
    tokens, _, uniforms = sample(logits, drawing)
    on_host = Drawing(**{name: getattr(drawing, name).cpu() for name in drawing.__dataclass_fields__})
    wide, found, wanted = logits.cpu().double(), [], []
    for row, token in enumerate(tokens.tolist()):
        temperature = float(on_host.temperature[row])
        if temperature == 0:
            found.append(float(wide[row, token]))
            wanted.append(float(wide[row].max()))
            continue
        weights = torch.exp((wide[row] - wide[row].max()) / temperature)
        mass = (weights * allowed_reference(logits.cpu(), on_host, row)).cumsum(0)
        mass /= mass[-1].clone()
        before = float(mass[token - 1]) if token else 0.0
        found.append(float(uniforms[row]))
        wanted.append(min(max(float(uniforms[row]), before), float(mass[token])))
    return torch.tensor(found), torch.tensor(wanted)


def _copied(place: Place, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.randn(6, 16, 8, 10, device=place.torch_device).to(dtype)
    pairs = torch.tensor([[0, 4], [3, 1], [2, 5]], device=place.torch_device)
    found, wanted = torch.zeros_like(source), torch.zeros_like(source)
    copy_blocks(source, found, pairs)
    copy_blocks_reference(source, wanted, pairs)
    return found, wanted
