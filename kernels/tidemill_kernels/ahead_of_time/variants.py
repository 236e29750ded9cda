"""Which variants of which kernels are compiled: the shapes and dtypes that models and steps ask for.

Pure data, so that a new kernel is a new entry. A pointer is written by its dtype as Triton spells it.
"""

from __future__ import annotations

from tidemill_kernels.ahead_of_time.attention_variants import attention_variants, merge_variants
from tidemill_kernels.ahead_of_time.resources import Bounds
from tidemill_kernels.ahead_of_time.variant import FP8_CAPABILITY, Constant, Variant
from tidemill_kernels.paged_attention.launch import Gpu
from tidemill_kernels.rms_norm.launch import plan_norm
from tidemill_kernels.silu_mul.launch import plan_gate
from tidemill_kernels.weight_quant.launch import ProductLaunch, plan_product

NUM_MULTIPROCESSORS = 132
_PRODUCT_SIZES = dict.fromkeys(
    ("num_tokens", "out_features", "in_features", "stride_x_token", "stride_out_token"), "i32"
)


def all_variants(capability: int) -> list[Variant]:
    """List every variant that a target has; capability: 80 for sm_80, and so on."""
    every = [
        *attention_variants(Gpu(num_multiprocessors=NUM_MULTIPROCESSORS, capability=capability)),
        *merge_variants(),
        *_row_variants(),
        *_rotation_variants(),
        *_product_variants(),
        _sampler("fp32"),
        _sampler("bf16"),
        _block_copy(),
        _batch_preparation(),
    ]
    return [variant for variant in every if variant.min_capability <= capability]


def _row_variants() -> list[Variant]:
    found = []
    for size in (576, 4096, 8192):
        norm = plan_norm(size)
        found.append(
            Variant(
                name=f"add-rms-norm-{size}",
                kernel="rms_norm:add_rms_norm_kernel",
                pointers=dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr", "out_ptr"), "bf16"),
                numbers={
                    **dict.fromkeys(("stride_x_row", "stride_residual_row", "stride_out_row", "size"), "i32"),
                    "eps": "fp32",
                },
                constants={"HAS_RESIDUAL": True, "BLOCK": norm.block},
                num_warps=norm.num_warps,
            )
        )
    gate = plan_gate(1, 14_336)
    gated = Variant(
        name="silu-mul",
        kernel="silu_mul:silu_mul_kernel",
        pointers={"gate_up_ptr": "bf16", "out_ptr": "bf16"},
        numbers=dict.fromkeys(("stride_gate_row", "stride_out_row", "size"), "i32"),
        constants={"BLOCK": gate.block},
        num_warps=gate.num_warps,
    )
    return [*found, gated]


def _rotation_variants() -> list[Variant]:
    return [
        Variant(
            name=f"rope-kv-write-{kv}{'-norm' if has_norm else ''}",
            kernel="rope_kv_write:rope_kv_write_kernel",
            pointers={
                **dict.fromkeys(("qkv_ptr", "query_ptr", "q_norm_ptr", "k_norm_ptr"), "bf16"),
                **dict.fromkeys(("key_cache_ptr", "value_cache_ptr"), kv),
                **dict.fromkeys(("key_scales_ptr", "value_scales_ptr"), "fp32"),
                **dict.fromkeys(("positions_ptr", "slot_mapping_ptr"), "i64"),
                **dict.fromkeys(("cos_ptr", "sin_ptr"), "fp32"),
            },
            numbers={
                **dict.fromkeys(("stride_qkv_token", "stride_query_token"), "i32"),
                "eps": "fp32",
            },
            constants={
                "NUM_HEADS": 32,
                "NUM_KV_HEADS": 8,
                "HEAD_DIM": 128,
                "HALF_BLOCK": 64,
                "HAS_NORM": has_norm,
                "NARROW_MOST": {"i8": 127.0, "fp8e4nv": 448.0}.get(kv, 0.0),
                "IS_INT8": kv == "i8",
            },
            num_warps=1,
            min_capability=FP8_CAPABILITY if kv == "fp8e4nv" else 80,
        )
        for kv, has_norm in (("bf16", False), ("bf16", True), ("i8", False), ("fp8e4nv", False))
    ]


def _product_variants() -> list[Variant]:
    scaled = (("i8", 0), ("fp8e4nv", 0), ("fp8e4nv", 128))
    return [
        variant
        for num_tokens in (1, 256)
        for variant in (
            *(_scaled_product(num_tokens, weight, group) for weight, group in scaled),
            *(_int4_product(num_tokens, layout) for layout in ("awq", "gptq")),
        )
    ]


def _scaled_product(num_tokens: int, weight: str, group: int) -> Variant:
    launch = plan_product(num_tokens, group or None)
    return Variant(
        name=f"product-{weight}{'-blocks' if group else ''}-{num_tokens}",
        kernel="weight_quant:scaled_linear_kernel",
        pointers={"x_ptr": "bf16", "weight_ptr": weight, "scale_ptr": "fp32", "out_ptr": "bf16"},
        numbers={**_PRODUCT_SIZES, "stride_weight_out": "i32"},
        constants={"GROUP_SIZE": group, **_tiles(launch)},
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        min_capability=FP8_CAPABILITY if weight == "fp8e4nv" else 80,
    )


def _int4_product(num_tokens: int, layout: str) -> Variant:
    launch = plan_product(num_tokens, 128)
    return Variant(
        name=f"product-{layout}-{num_tokens}",
        kernel="weight_quant:int4_linear_kernel",
        pointers={
            **dict.fromkeys(("x_ptr", "scales_ptr", "out_ptr"), "fp16"),
            **dict.fromkeys(("words_ptr", "zeros_ptr"), "i32"),
        },
        numbers=_PRODUCT_SIZES,
        constants={"GROUP_SIZE": 128, "IS_AWQ": layout == "awq", **_tiles(launch)},
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )


def _tiles(launch: ProductLaunch) -> dict[str, Constant]:
    return {"ROWS": launch.rows, "COLUMNS": launch.columns, "INPUTS": launch.inputs}


def _sampler(dtype: str) -> Variant:
    return Variant(
        name=f"sample-{dtype}",
        kernel="sampler:sample_kernel",
        pointers={
            "logits_ptr": dtype,
            "token_ptr": "i64",
            "top_k_ptr": "i32",
            "seed_ptr": "i64",
            "position_ptr": "i32",
            **dict.fromkeys(
                ("logprob_ptr", "uniform_ptr", "temperature_ptr", "top_p_ptr", "min_p_ptr"), "fp32"
            ),
        },
        numbers={"stride_row": "i32", "vocab_size": "i32"},
        constants={"BLOCK": 2048},
        num_warps=8,
        # Eight bytes of stack on sm_89, of 48 registers: no loop's number is kept there.
        bounds=Bounds(spilled_bytes=8),
    )


def _block_copy() -> Variant:
    return Variant(
        name="copy-blocks",
        kernel="block_copy:copy_blocks_kernel",
        pointers={"source_ptr": "i32", "target_ptr": "i32", "pairs_ptr": "i64"},
        numbers={"num_words": "i32"},
        constants={"BLOCK": 2048},
        num_warps=4,
    )


def _batch_preparation() -> Variant:
    inputs = ("rows_ptr", "start_pos_ptr", "query_start_ptr", "token_pool_ptr", "block_table_ptr")
    return Variant(
        name="prepare-batch",
        kernel="batch_prep:prepare_batch_kernel",
        pointers={
            **dict.fromkeys(inputs, "i32"),
            **dict.fromkeys(("input_ids_ptr", "positions_ptr", "slots_ptr"), "i64"),
        },
        numbers=dict.fromkeys(("stride_pool_row", "stride_table_row", "block_size"), "i32"),
        constants={"BLOCK": 256},
        num_warps=2,
    )
