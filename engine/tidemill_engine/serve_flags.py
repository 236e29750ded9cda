"""The flags of `tidemill-engine serve`, and the configuration that they make.

Only this module and `__main__` read the environment.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tidemill_engine.api.config import AdminConfig, DrainConfig, HttpConfig, ServeConfig
from tidemill_engine.api.generation_config import sampling_defaults
from tidemill_engine.api.keys import ApiKeys
from tidemill_engine.api.protocol import SamplingDefaults
from tidemill_engine.api.termination import default_termination_log
from tidemill_engine.config import (
    ATTENTION_BACKENDS,
    DEVICES,
    DTYPES,
    KERNELS,
    KV_DTYPES,
    QUANTIZATIONS,
    CacheConfig,
    CoreConfig,
    DeviceConfig,
    ModelConfig,
    SchedulerConfig,
)
from tidemill_engine.model_uri import SUPPORTED, default_model_name, parse_model_uri
from tidemill_engine.runner.machine import has_gpu_driver, has_torch_for_gpus, shows_gpus
from tidemill_engine.scheduler_flags import add_scheduler_flags, scheduler_config

API_KEY_VARIABLE = "TIDEMILL_API_KEY"
KERNELS_VARIABLE = "TIDEMILL_CPU_KERNELS"
GIB = 1 << 30
GPU_BLOCK_SIZE = 16
GPU_BUDGET = 4096
NICENESS = 3
"""Streams can wait a moment; a step that waits holds up every stream."""


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    """Add every flag of the command."""
    parser.add_argument("uri", metavar="URI", help=f"the model: {SUPPORTED}".replace("%", "%%"))
    _add_http_flags(parser.add_argument_group("server"))
    engine = parser.add_argument_group("engine")
    _add_engine_flags(engine)
    _add_device_flags(engine)
    add_scheduler_flags(parser.add_argument_group("scheduler"))


def make_config(arguments: argparse.Namespace, api_key: str | None) -> ServeConfig:
    """Turn flags into a checked configuration."""
    model = parse_model_uri(arguments.uri)
    ApiKeys(None, arguments.api_keys_file).load()
    _choose_sizes(arguments)
    token_file = arguments.admin_token_file
    admin_host = arguments.admin_host or (arguments.host if token_file is not None else "127.0.0.1")
    return ServeConfig(
        core=_core_config(arguments),
        served_model_names=tuple(arguments.served_model_name or [default_model_name(model)]),
        http=HttpConfig(
            host=arguments.host,
            port=arguments.port,
            api_key=arguments.api_key or api_key,
            api_keys_file=arguments.api_keys_file,
            is_trusting_tenant_headers=arguments.trust_tenant_headers,
            max_body_bytes=arguments.max_body_bytes,
        ),
        admin=AdminConfig(host=admin_host, port=arguments.admin_port, token_file=token_file),
        drain=DrainConfig(grace_seconds=arguments.drain_grace, timeout_seconds=arguments.drain_timeout),
        max_queued_requests=arguments.max_queued_requests,
        max_num_queued_tokens=arguments.max_num_queued_tokens,
        is_strict_max_tokens=arguments.strict_max_tokens,
        sampling_defaults=sampling_defaults(model)
        if arguments.generation_config == "auto"
        else SamplingDefaults(),
        termination_log=arguments.termination_log or default_termination_log(),
        niceness=NICENESS,
    )


def _core_config(arguments: argparse.Namespace) -> CoreConfig:
    """Return what the core is told."""
    return CoreConfig(
        model=ModelConfig(
            uri=arguments.uri,
            dtype=arguments.dtype,
            max_model_len=arguments.max_model_len,
            seed=arguments.seed,
            quantization=arguments.quantization,
            kernels=arguments.cpu_kernels,
        ),
        cache=CacheConfig(
            block_size=arguments.block_size,
            num_blocks=arguments.num_kv_blocks,
            memory_bytes=arguments.kv_cache_memory_bytes,
            memory_utilization=arguments.gpu_memory_utilization,
            is_prefix_caching=arguments.enable_prefix_caching,
            swap_bytes=int(arguments.swap_space * GIB),
            dtype=arguments.kv_cache_dtype,
        ),
        scheduler=scheduler_config(arguments),
        device=DeviceConfig(
            name=arguments.device,
            tensor_parallel_size=arguments.tensor_parallel_size,
            attention_backend=arguments.attention_backend,
            has_graphs=not arguments.enforce_eager,
        ),
        log_level=arguments.log_level,
    )


def _choose_sizes(arguments: argparse.Namespace) -> None:
    """Fill in what depends on the device, which is found out without importing torch."""
    is_gpu = arguments.device == "cuda" or (arguments.device == "auto" and _expects_gpu())
    if arguments.block_size is None:
        arguments.block_size = GPU_BLOCK_SIZE if is_gpu else CacheConfig.block_size
    if arguments.max_num_batched_tokens is None:
        arguments.max_num_batched_tokens = GPU_BUDGET if is_gpu else SchedulerConfig.max_num_batched_tokens
    if arguments.max_chunk_tokens is None:
        budget = arguments.max_num_batched_tokens
        arguments.max_chunk_tokens = budget if is_gpu else SchedulerConfig.max_chunk_tokens


def _expects_gpu() -> bool:
    """Say whether the core process, which asks torch, should find a GPU."""
    return has_gpu_driver() and shows_gpus(os.environ) and has_torch_for_gpus()


def _add_http_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1", help="address of the OpenAI API (default 127.0.0.1)")
    group.add_argument("--port", type=int, default=8000, help="its port; 0 takes a free one (default 8000)")
    group.add_argument("--admin-host", help="address of the admin API (default: --host with a token file)")
    group.add_argument("--admin-port", type=int, default=8001, help="its port (default 8001)")
    group.add_argument("--admin-token-file", type=Path, help="file with the admin API's bearer token")
    group.add_argument("--served-model-name", nargs="+", metavar="NAME", help="names that requests may use")
    group.add_argument("--api-key", help=f"ask for this key under /v1/ (default ${API_KEY_VARIABLE})")
    group.add_argument(
        "--api-keys-file",
        type=Path,
        help="accept the keys in this file too: tenant=key lines, * for a gateway",
    )
    group.add_argument(
        "--trust-tenant-headers",
        action="store_true",
        help="take tenant and priority from x-tidemill-tenant and x-tidemill-priority: behind a gateway only",
    )
    group.add_argument("--max-body-bytes", type=int, default=8 * 1024 * 1024, help="longest request body")
    group.add_argument(
        "--max-queued-requests", type=int, default=1024, help="beyond these and the running ones: 429"
    )
    group.add_argument("--max-num-queued-tokens", type=int, help="beyond these waiting prompt tokens: 429")
    group.add_argument(
        "--strict-max-tokens", action="store_true", help="refuse a max_tokens that does not fit, not clamp it"
    )
    group.add_argument(
        "--generation-config",
        choices=("auto", "none"),
        default="auto",
        help="auto: where a request is silent, sample as the model's makers recommend; none: as OpenAI does",
    )
    group.add_argument("--drain-grace", type=float, default=5.0, help="seconds to accept while draining")
    group.add_argument("--drain-timeout", type=float, default=300.0, help="seconds for streams to finish")
    group.add_argument("--termination-log", type=Path, help="file for the reason of a failure")


def _add_engine_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dtype", choices=DTYPES, default="auto", help="auto is bfloat16 on a CPU")
    group.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        help="narrower matrices, faster and less exact: int8 or int4 on a CPU, int8 or fp8 on a GPU "
        "(default: as --dtype or a quantised checkpoint says)",
    )
    group.add_argument(
        "--cpu-kernels",
        choices=KERNELS,
        default=os.environ.get(KERNELS_VARIABLE, "auto"),
        help=f"instructions to compute with: the best there are (default, or ${KERNELS_VARIABLE})",
    )
    group.add_argument("--max-model-len", type=int, help="longest sequence (default: the model's)")
    group.add_argument("--max-num-seqs", type=int, default=SchedulerConfig.max_num_seqs)
    group.add_argument(
        "--max-num-batched-tokens",
        type=int,
        help=f"tokens of a step (default {SchedulerConfig.max_num_batched_tokens}, on a GPU {GPU_BUDGET})",
    )
    group.add_argument(
        "--max-chunk-tokens",
        type=int,
        help="of one prompt in a step, where batching is continuous "
        f"(default {SchedulerConfig.max_chunk_tokens}, on a GPU as many as the step has)",
    )
    _add_cache_flags(group)
    group.add_argument("--seed", type=int, default=0, help="seed of requests that bring none")


def _add_cache_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--block-size",
        type=int,
        help=f"tokens per KV block (default {CacheConfig.block_size}, on a GPU {GPU_BLOCK_SIZE})",
    )
    group.add_argument(
        "--gpu-memory-utilization",
        type=float,
        default=CacheConfig.memory_utilization,
        metavar="SHARE",
        help="of the device's memory, or the memory limit on a CPU, for all that it holds (default 0.9)",
    )
    group.add_argument("--kv-cache-memory-bytes", type=int, help="memory for the KV cache")
    group.add_argument(
        "--kv-cache-dtype",
        choices=KV_DTYPES,
        default=CacheConfig.dtype,
        help="numbers of the KV cache: the model's (default); on a GPU also 8 bits, in about half the room",
    )
    group.add_argument("--num-kv-blocks", type=int, help="KV blocks, instead of memory")
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="find blocks of earlier prompts again (default on)",
    )
    group.add_argument(
        "--swap-space", type=float, default=0.0, help="GiB of CPU memory for preempted requests' blocks"
    )


def _add_device_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tensor-parallel-size",
        type=int,
        default=DeviceConfig.tensor_parallel_size,
        metavar="N",
        help="processes that compute the model together, one per GPU (default 1)",
    )
    group.add_argument(
        "--device",
        choices=DEVICES,
        default=DeviceConfig.name,
        help="auto: a GPU where there is one (default)",
    )
    group.add_argument(
        "--attention-backend",
        choices=ATTENTION_BACKENDS,
        default=DeviceConfig.attention_backend,
        help="who computes attention on a GPU: the fastest as measured at the start (default), or by name",
    )
    group.add_argument("--enforce-eager", action="store_true", help="capture no CUDA graphs of decode steps")
