"""The variants of attention, which follow from how its launch is planned for a model, a step and a GPU."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill_kernels.ahead_of_time.resources import Bounds
from tidemill_kernels.ahead_of_time.variant import FP8_CAPABILITY, Constant, Variant
from tidemill_kernels.paged_attention.launch import AttentionLaunch, Gpu, HeadShape, plan_attention

LLAMA_8B = HeadShape(num_heads=32, num_kv_heads=8, head_dim=128)
SMOLLM2 = HeadShape(num_heads=9, num_kv_heads=3, head_dim=64)


def attention_variants(gpu: Gpu) -> list[Variant]:
    """List attention for two models, for decode and prefill, for each dtype and each kind of cache."""
    found = []
    for model, heads in (("llama-8b", LLAMA_8B), ("smollm2", SMOLLM2)):
        for dtype in ("bf16", "fp16", "fp32"):
            for step, new, length in (
                ("decode", 1, 512),
                ("decode-long", 1, 32_768),
                ("prefill", 2048, 2048),
            ):
                launch = plan_attention([new], [length], heads, gpu, is_float32=dtype == "fp32")
                found.append(_attention(f"{model}-{step}-{dtype}", heads, launch, dtype))
    decode = plan_attention([1], [512], LLAMA_8B, gpu)
    narrow = [
        _attention(f"llama-8b-{step}-bf16-{kv}", LLAMA_8B, launch, "bf16", kv)
        for step, launch in (("decode", decode), ("prefill", plan_attention([2048], [2048], LLAMA_8B, gpu)))
        for kv in ("i8", "fp8e4nv")
    ]
    options: Mapping[str, Constant] = {"WINDOW": 1024, "HAS_SOFT_CAP": True}
    prefill = plan_attention([2048], [4096], LLAMA_8B, gpu)
    special = _attention("llama-8b-prefill-window-cap", LLAMA_8B, prefill, "bf16", special=options)
    return [*found, *narrow, special]


def _attention(
    name: str,
    heads: HeadShape,
    launch: AttentionLaunch,
    dtype: str,
    kv: str | None = None,
    special: Mapping[str, Constant] | None = None,
) -> Variant:
    part = "fp32" if launch.num_parts > 1 else dtype
    indices = ("block_table", "seq_lens", "query_start", "tile_sequences", "tile_starts")
    strides = ("stride_query_token", "stride_out_token", "stride_cache_slot", "stride_table")
    return Variant(
        name=f"attention-{name}",
        kernel="paged_attention:paged_attention_kernel",
        pointers={
            "out_ptr": dtype,
            "part_out_ptr": part,
            "part_stats_ptr": part,
            "query_ptr": dtype,
            "key_cache_ptr": kv or dtype,
            "value_cache_ptr": kv or dtype,
            **dict.fromkeys(("key_scales_ptr", "value_scales_ptr"), "fp32" if kv else dtype),
            **{f"{index}_ptr": "i32" for index in indices},
        },
        numbers={
            **dict.fromkeys((*strides, "num_tokens", "block_size"), "i32"),
            **dict.fromkeys(("scale_log2", "soft_cap"), "fp32"),
        },
        constants={
            "WINDOW": 0,
            "HAS_SOFT_CAP": False,
            "IS_NARROW": kv is not None,
            "NUM_HEADS": heads.num_heads,
            "GROUP": heads.group,
            "GROUP_PADDED": heads.padded_group,
            "HEAD_DIM": heads.head_dim,
            "DIM_BLOCK": heads.head_dim,
            "ROWS": launch.rows,
            "KEYS": launch.keys,
            "NUM_PARTS": launch.num_parts,
            **(special or {}),
        },
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        min_capability=FP8_CAPABILITY if kv == "fp8e4nv" else 80,
        # No matrix unit multiplies float32 as it is: it is there for exactness, not for speed.
        bounds=Bounds(spilled_bytes=1024 if dtype == "fp32" else 0),
    )


def merge_variants() -> list[Variant]:
    """List the merging of a split context for each dtype of the result."""
    constants = {"NUM_HEADS": 32, "HEAD_DIM": 128, "DIM_BLOCK": 128, "NUM_PARTS": 32, "PARTS_BLOCK": 32}
    return [
        Variant(
            name=f"merge-parts-{dtype}",
            kernel="paged_attention:merge_parts_kernel",
            pointers={"out_ptr": dtype, "part_out_ptr": "fp32", "part_stats_ptr": "fp32"},
            numbers={"stride_out_token": "i32", "num_tokens": "i32"},
            constants=constants,
            num_warps=1,
        )
        for dtype in ("bf16", "fp16", "fp32")
    ]
