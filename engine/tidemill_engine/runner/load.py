"""Picks the runner for a model URI; only here is torch's part imported, and only when a model needs it.

Knows which scheme needs which runner. Every failure comes out as a `ModelLoadError` that a person can act on.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from tidemill_engine.config import GPU_LIBRARIES
from tidemill_engine.errors import EngineError, ModelLoadError
from tidemill_engine.model_uri import SimModel, find_model_path, parse_model_uri
from tidemill_engine.models.weights import open_weights
from tidemill_engine.runner import machine
from tidemill_engine.runner.sim import load_sim_runner

if TYPE_CHECKING:
    from tidemill_engine.config import CoreConfig
    from tidemill_engine.model_uri import BuiltinModel, FileModel
    from tidemill_engine.parallel.membership import Membership
    from tidemill_engine.runner.base import ModelRunner, ReportProgress

logger = logging.getLogger(__name__)

_MEMORY_REFUSED = ("can't allocate memory", "CUDA out of memory", "CUDA error: out of memory")
"""Torch's words: for the CPU, for a GPU, and by the driver, as for pinned memory of the host."""


def load_runner(
    config: CoreConfig, report: ReportProgress, membership: Membership | None = None
) -> ModelRunner:
    """Load the model, or a rank's part of it, and make it ready to compute."""
    try:
        model = parse_model_uri(config.model.uri)
        if isinstance(model, SimModel):
            return load_sim_runner(model, config, report)
        return _load_real_model(model, config, report, membership)
    except ModelLoadError:
        raise
    except EngineError as error:
        raise ModelLoadError(error.message, reason="InvalidConfig") from error
    except ModuleNotFoundError as error:
        raise ModelLoadError(
            f"{config.model.uri} needs the Python package {error.name}, which is not installed here",
            reason="ModelLoadFailed",
        ) from error
    except Exception as error:
        if is_out_of_memory(error):
            raise ModelLoadError(
                "the model and its KV cache do not fit into this machine's memory", reason="OutOfMemory"
            ) from error
        logger.exception("loading %s failed", config.model.uri)
        raise ModelLoadError(f"{config.model.uri} can't be loaded: {error}") from error


def _load_real_model(
    model: BuiltinModel | FileModel,
    config: CoreConfig,
    report: ReportProgress,
    membership: Membership | None,
) -> ModelRunner:
    """Load a model with weights: onto a GPU, else with the C++ kernels, else with torch's operators."""
    if may_have_gpu(config):
        from tidemill_engine.runner.gpu.load import has_gpu, load_cuda_runner  # noqa: PLC0415 - heavy, optional

        if has_gpu(config):
            return load_cuda_runner(open_weights(find_model_path(model)), config, report, membership)
    _refuse_what_a_cpu_ignores(config)
    from tidemill_engine.runner.native_cpu import find_kernels, load_native_runner  # noqa: PLC0415 - numpy only

    library = find_kernels(config) if membership is None else None
    if library is not None:
        return load_native_runner(model, config, library, report)
    if config.model.quantization is not None:
        raise ModelLoadError(
            f"quantization {config.model.quantization} needs the C++ kernels, which can't be had here "
            "or do not divide a model among ranks",
            reason="InvalidConfig",
        )
    from tidemill_engine.runner.torch_cpu import load_torch_cpu_runner  # noqa: PLC0415 - heavy, and optional

    return load_torch_cpu_runner(model, config, report, membership)


def _refuse_what_a_cpu_ignores(config: CoreConfig) -> None:
    """Raise where something was asked for by name that computing on this CPU would not do."""
    backend, kernels = config.device.attention_backend, config.model.kernels
    if config.cache.dtype != "auto":
        raise ModelLoadError(
            f"--kv-cache-dtype {config.cache.dtype} is for GPUs, and the CPU was chosen",
            reason="InvalidConfig",
        )
    if config.model.quantization == "fp8":
        raise ModelLoadError(
            "--quantization fp8 is for GPUs; the CPU was chosen, which makes int8 or int4 of weights",
            reason="InvalidConfig",
        )
    if backend in GPU_LIBRARIES:
        raise ModelLoadError(
            f"--attention-backend {backend} computes on a GPU, and the CPU was chosen", reason="InvalidConfig"
        )
    if config.device.tensor_parallel_size > 1 and kernels not in {"auto", "torch"}:
        raise ModelLoadError(
            f"--cpu-kernels {kernels} do not divide a model among ranks", reason="InvalidConfig"
        )


def may_have_gpu(config: CoreConfig) -> bool:
    """Say whether torch should be asked for a GPU: as told, or where a driver is. Its import takes memory."""
    wanted = config.device.name
    return wanted == "cuda" or (wanted == "auto" and machine.has_gpu_driver())


def is_out_of_memory(error: Exception) -> bool:
    """Say whether memory was refused: by Python, by the system, or by torch, which says so in words only."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _MEMORY_REFUSED)
    )
