"""Command line of this package; reads flags and environment and nothing else does."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from tidemill_engine.api.config import AdminConfig, DrainConfig, HttpConfig, ServeConfig
from tidemill_engine.api.generation_config import sampling_defaults
from tidemill_engine.api.keys import ApiKeys
from tidemill_engine.api.protocol import SamplingDefaults
from tidemill_engine.api.serve import Listening, serve
from tidemill_engine.api.termination import (
    EXIT_USAGE,
    Ending,
    default_termination_log,
    write_termination_log,
)
from tidemill_engine.config import (
    ADMISSIONS,
    ATTENTION_BACKENDS,
    DEVICES,
    DTYPES,
    KERNELS,
    POLICIES,
    QUANTIZATIONS,
    SCHEDULERS,
    CacheConfig,
    CoreConfig,
    DeviceConfig,
    DynamicConfig,
    ModelConfig,
    OrderConfig,
    SchedulerConfig,
    Watermarks,
)
from tidemill_engine.download.command import add_download_command, run_download
from tidemill_engine.errors import EngineError, InvalidConfig
from tidemill_engine.model_uri import SUPPORTED, default_model_name, parse_model_uri

API_KEY_VARIABLE = "TIDEMILL_API_KEY"
KERNELS_VARIABLE = "TIDEMILL_CPU_KERNELS"
LOG_LEVELS = ("debug", "info", "warning", "error")
GIB = 1 << 30
NICENESS = 3
"""Streams can wait a moment; a step that waits holds up every stream."""

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line."""
    parser = argparse.ArgumentParser(prog="tidemill-engine", description="Serve a language model.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("serve", help="serve one model over the OpenAI API")
    command.add_argument("uri", metavar="URI", help=f"the model: {SUPPORTED}".replace("%", "%%"))
    _add_http_flags(command.add_argument_group("server"))
    _add_engine_flags(command.add_argument_group("engine"))
    _add_scheduler_flags(command.add_argument_group("scheduler"))
    command.add_argument("--log-level", choices=LOG_LEVELS, default="info")
    fetching = commands.add_parser("download", help="download a model, to be served by file:// afterwards")
    add_download_command(fetching)
    fetching.add_argument("--log-level", choices=LOG_LEVELS, default="info")
    return parser


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
        help="matrices as whole numbers, faster and less exact (default: as --dtype says)",
    )
    group.add_argument(
        "--cpu-kernels",
        choices=KERNELS,
        default=os.environ.get(KERNELS_VARIABLE, "auto"),
        help=f"instructions to compute with: the best there are (default, or ${KERNELS_VARIABLE})",
    )
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
        help="who computes attention on a GPU: our own kernel (default), or an installed library",
    )
    group.add_argument("--enforce-eager", action="store_true", help="capture no CUDA graphs of decode steps")
    group.add_argument("--max-model-len", type=int, help="longest sequence (default: the model's)")
    group.add_argument("--max-num-seqs", type=int, default=SchedulerConfig.max_num_seqs)
    group.add_argument("--max-num-batched-tokens", type=int, default=SchedulerConfig.max_num_batched_tokens)
    group.add_argument("--block-size", type=int, default=CacheConfig.block_size, help="tokens per KV block")
    group.add_argument(
        "--gpu-memory-utilization",
        type=float,
        default=CacheConfig.memory_utilization,
        metavar="SHARE",
        help="of the device's memory, or the memory limit on a CPU, for all that it holds (default 0.9)",
    )
    group.add_argument("--kv-cache-memory-bytes", type=int, help="memory for the KV cache")
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
    group.add_argument("--seed", type=int, default=0, help="seed of requests that bring none")


def _add_scheduler_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--scheduler",
        choices=SCHEDULERS,
        default=SchedulerConfig.kind,
        help="continuous (default); static and dynamic are padded batches to compare with",
    )
    group.add_argument(
        "--scheduling-policy",
        choices=POLICIES,
        default=OrderConfig.policy,
        help="which waiting request is next: the first (default), the shortest, by class, the most urgent",
    )
    group.add_argument(
        "--admission",
        choices=ADMISSIONS,
        default=SchedulerConfig.admission,
        help="adaptive shuts on preemption (default), strict is a latch between two watermarks",
    )
    group.add_argument(
        "--kv-watermarks",
        type=_watermarks,
        default=Watermarks(),
        metavar="HIGH,LOW,CRITICAL",
        help="shares of the KV cache (default 0.9,0.7,0.95)",
    )
    group.add_argument(
        "--enable-chunked-prefill",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compute prompts in chunks beside decodes (default on)",
    )
    group.add_argument(
        "--tenant-weights",
        type=_weights,
        default={},
        metavar="NAME=WEIGHT,...",
        help="shares of tenants that are not 1",
    )
    group.add_argument(
        "--default-ttft-slo",
        type=float,
        default=OrderConfig.default_ttft_slo_seconds,
        metavar="SECONDS",
        help="time to first token for requests that state none, under --scheduling-policy slo (default 30)",
    )
    group.add_argument(
        "--batch-window",
        type=float,
        default=DynamicConfig.window_seconds,
        metavar="SECONDS",
        help="how long --scheduler dynamic waits for a batch (default 0.1)",
    )
    group.add_argument(
        "--preferred-batch-sizes",
        type=_sizes,
        default=(),
        metavar="N,...",
        help="batches that --scheduler dynamic starts at once",
    )


def _weights(text: str) -> dict[str, float]:
    """Read `name=weight,...`."""
    weights: dict[str, float] = {}
    for item in filter(None, text.split(",")):
        name, separator, weight = item.rpartition("=")
        if not separator or not name:
            raise argparse.ArgumentTypeError(f"{item!r} is not name=weight")
        weights[name.strip()] = float(weight)
    return weights


def _watermarks(text: str) -> Watermarks:
    """Read `high,low,critical`."""
    parts = [float(part) for part in text.split(",")]
    if len(parts) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} is not high,low,critical")
    try:
        return Watermarks(high=parts[0], low=parts[1], critical=parts[2])
    except InvalidConfig as error:
        raise argparse.ArgumentTypeError(error.message) from error


def _sizes(text: str) -> tuple[int, ...]:
    """Read `n,...`."""
    return tuple(int(part) for part in filter(None, text.split(",")))


def _scheduler_config(arguments: argparse.Namespace) -> SchedulerConfig:
    """Turn the scheduler's flags into a checked configuration."""
    return SchedulerConfig(
        kind=arguments.scheduler,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        is_chunked_prefill=arguments.enable_chunked_prefill,
        admission=arguments.admission,
        watermarks=arguments.kv_watermarks,
        order=OrderConfig(
            policy=arguments.scheduling_policy,
            default_ttft_slo_seconds=arguments.default_ttft_slo,
            tenant_weights=arguments.tenant_weights,
        ),
        dynamic=DynamicConfig(
            window_seconds=arguments.batch_window, preferred_sizes=arguments.preferred_batch_sizes
        ),
    )


def make_config(arguments: argparse.Namespace, api_key: str | None) -> ServeConfig:
    """Turn flags into a checked configuration."""
    model = parse_model_uri(arguments.uri)
    ApiKeys(None, arguments.api_keys_file).load()
    core = CoreConfig(
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
        ),
        scheduler=_scheduler_config(arguments),
        device=DeviceConfig(
            name=arguments.device,
            tensor_parallel_size=arguments.tensor_parallel_size,
            attention_backend=arguments.attention_backend,
            has_graphs=not arguments.enforce_eager,
        ),
        log_level=arguments.log_level,
    )
    token_file = arguments.admin_token_file
    admin_host = arguments.admin_host or (arguments.host if token_file is not None else "127.0.0.1")
    return ServeConfig(
        core=core,
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


def print_first_steps(config: ServeConfig, listening: Listening) -> None:
    """Tell a person at this machine where to look and what to type; say nothing in a pod."""
    if config.http.host not in LOOPBACK_HOSTS:
        return
    url = f"http://{config.http.host}:{listening.api_port}"
    model = config.served_model_names[0]
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "What is a tide mill?"}}]}}'
    key = "-H 'Authorization: Bearer KEY' " if config.http.api_key else ""
    print(f"\n{model} is ready. A page to type into: {url}/\nOr:\n")
    print(
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' {key}\\\n  -d '{body}'\n",
        flush=True,
    )


def main() -> None:
    """Run the command line."""
    arguments = make_parser().parse_args()
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    log_path = arguments.termination_log or default_termination_log()
    if arguments.command == "download":
        _end(asyncio.run(run_download(arguments, os.environ)), log_path)
    try:
        config = make_config(arguments, os.environ.get(API_KEY_VARIABLE) or None)
    except EngineError as error:
        ending = Ending(exit_code=EXIT_USAGE, reason="InvalidConfig", message=error.message)
    else:
        ending = asyncio.run(serve(config, on_ready=lambda listening: print_first_steps(config, listening)))
    _end(ending, log_path)


def _end(ending: Ending, log_path: Path | None) -> NoReturn:
    """Leave the reason behind and end."""
    write_termination_log(log_path, ending)
    if ending.exit_code:
        print(f"tidemill-engine: {ending.message}", file=sys.stderr)
    raise SystemExit(ending.exit_code)


if __name__ == "__main__":
    main()
