"""The library's C interface for ctypes: structures and signatures, one for one with `src/`."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_float, c_int32, c_int64, c_void_p
from pathlib import Path


class ModelConfig(Structure):
    """`ModelConfig` of model.h."""

    _fields_ = [
        *(
            (name, c_int32)
            for name in (
                "num_layers",
                "hidden_size",
                "intermediate_size",
                "num_heads",
                "num_kv_heads",
                "head_dim",
                "vocab_size",
                "max_positions",
                "block_size",
                "sliding_window",
                "has_qkv_bias",
                "has_qk_norm",
                "format",
                "head_format",
                "num_threads",
            )
        ),
        ("eps", c_float),
    ]


class Step(Structure):
    """`Step` of engine.h."""

    _fields_ = [
        *((name, c_int64) for name in ("num_tokens", "num_sequences", "num_logits")),
        *(
            (name, c_void_p)
            for name in (
                "token_ids",
                "positions",
                "starts",
                "lengths",
                "row_index",
                "block_table",
            )
        ),
        ("block_stride", c_int64),
        *((name, c_void_p) for name in ("keys", "values", "logit_tokens", "logits")),
        ("logit_stride", c_int64),
        *((name, c_void_p) for name in ("best", "is_valid")),
    ]


class Tensor(Structure):
    """`Tensor` of source.h; `data` must outlive the call."""

    _fields_ = [
        ("data", c_void_p),
        *((name, c_int32) for name in ("kind", "heads")),
        *((name, c_int64) for name in ("rows", "inputs")),
    ]


class Draw(Structure):
    """`Draw` of sampling.h."""

    _fields_ = [
        ("temperature", c_float),
        ("min_p", c_float),
        ("top_p", c_float),
        ("top_k", c_int32),
        ("number", c_double),
    ]


_SIGNATURES = {
    "tm_lanes": (c_int32, []),
    "tm_has_tiles": (c_int32, []),
    "tm_engine_new": (c_void_p, [POINTER(ModelConfig)]),
    "tm_engine_free": (None, [c_void_p]),
    "tm_engine_set": (c_int32, [c_void_p, c_int32, c_int32, POINTER(Tensor), c_int64]),
    "tm_engine_memory": (c_void_p, [c_void_p]),
    "tm_engine_memory_bytes": (c_int64, [c_void_p]),
    "tm_engine_block_elements": (c_int64, [c_void_p]),
    "tm_engine_step": (c_int32, [c_void_p, POINTER(Step)]),
    "tm_plan_decodes": (c_int64, [c_void_p, c_int64, c_int32, c_int32, c_void_p, c_int64]),
    "tm_engine_times": (None, [c_void_p, POINTER(c_double)]),
    "tm_engine_time_matrix": (c_double, [c_void_p, c_int32, c_int64, c_int32, c_int32]),
    "tm_engine_set_way": (None, [c_void_p, c_int32, c_int32, c_int32]),
    "tm_engine_draw": (
        None,
        [c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p, POINTER(Draw), c_void_p],
    ),
}


def load_library(path: Path) -> ctypes.CDLL:
    """Load a library and declare its functions."""
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
