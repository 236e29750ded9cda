"""The engine's command line for a spec.

Pure. Knows which field is which flag. Refuses to give defaults: what the spec leaves open is the engine's
choice.
"""

from collections.abc import Mapping
from typing import Final

from tidemill_operator import names
from tidemill_operator.engine_spec import Watermarks
from tidemill_operator.spec import ServiceSpec

TERMINATION_LOG: Final = "/dev/termination-log"
GIB: Final = 1 << 30


def engine_args(spec: ServiceSpec, engine_uri: str) -> list[str]:
    """Write the engine's command line; what the person added comes last and so wins."""
    args = [
        "serve",
        engine_uri,
        "--served-model-name",
        *spec.model.served_names,
        "--host",
        "0.0.0.0",  # noqa: S104 - a pod's own address is what Services reach
        "--port",
        str(names.ENGINE_PORT),
        "--admin-host",
        "0.0.0.0",  # noqa: S104 - guarded by the token
        "--admin-port",
        str(names.ENGINE_ADMIN_PORT),
        "--admin-token-file",
        names.ADMIN_TOKEN_FILE,
        "--drain-timeout",
        str(spec.drain_timeout_seconds),
        "--termination-log",
        TERMINATION_LOG,
    ]
    for flag, value in _optional(spec).items():
        if value is not None:
            args += [flag, str(value)]
    return [*args, *spec.engine.args]


def _optional(spec: ServiceSpec) -> Mapping[str, str | int | None]:
    engine, cache = spec.engine, spec.engine.kv_cache
    return {
        "--tensor-parallel-size": spec.tensor_parallel_size,
        "--dtype": engine.dtype,
        "--quantization": engine.quantization,
        "--max-model-len": engine.max_model_len,
        "--max-num-seqs": engine.max_num_seqs,
        "--max-num-batched-tokens": engine.max_num_batched_tokens,
        "--block-size": cache.block_size,
        "--scheduling-policy": engine.scheduling_policy,
        "--gpu-memory-utilization": _share(cache.memory_utilization_percent),
        "--swap-space": _gibibytes(cache.swap_space_bytes),
        "--kv-watermarks": _watermarks(cache.watermarks),
    }


def _share(percent: int | None) -> str | None:
    return None if percent is None else f"{percent / 100:g}"


def _gibibytes(num_bytes: int | None) -> str | None:
    return None if num_bytes is None else f"{num_bytes / GIB:.6f}".rstrip("0").rstrip(".")


def _watermarks(marks: Watermarks | None) -> str | None:
    if marks is None:
        return None
    percents = (marks.high_percent, marks.low_percent, marks.critical_percent)
    return ",".join(f"{percent / 100:g}" for percent in percents)
