"""The scheduler's flags of `tidemill-engine serve`, and the configuration that they make."""

from __future__ import annotations

import argparse

from tidemill_engine.config import (
    ADMISSIONS,
    POLICIES,
    SCHEDULERS,
    DynamicConfig,
    OrderConfig,
    SchedulerConfig,
    Watermarks,
)
from tidemill_engine.errors import InvalidConfig


def add_scheduler_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags."""
    group.add_argument(
        "--scheduler",
        choices=SCHEDULERS,
        default=SchedulerConfig.kind,
        help="continuous (default); static and dynamic are padded batches to compare with",
    )
    _add_order_flags(group)
    _add_admission_flags(group)
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


def _add_order_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--scheduling-policy",
        choices=POLICIES,
        default=OrderConfig.policy,
        help="which waiting request is next: the first (default), the shortest, by class, the most urgent",
    )
    group.add_argument(
        "--preempt-lower-priority",
        action="store_true",
        help="let running requests of lower classes wait again for one that does not fit beside them",
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


def _add_admission_flags(group: argparse._ArgumentGroup) -> None:
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


def scheduler_config(arguments: argparse.Namespace) -> SchedulerConfig:
    """Turn the scheduler's flags into a checked configuration."""
    knows_classes = arguments.scheduler == "continuous" and arguments.scheduling_policy != "fifo"
    if arguments.preempt_lower_priority and not knows_classes:
        raise InvalidConfig(
            "--preempt-lower-priority needs --scheduler continuous and a --scheduling-policy that knows "
            f"classes: not {arguments.scheduler}, {arguments.scheduling_policy}"
        )
    return SchedulerConfig(
        kind=arguments.scheduler,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        max_chunk_tokens=arguments.max_chunk_tokens,
        is_chunked_prefill=arguments.enable_chunked_prefill,
        admission=arguments.admission,
        watermarks=arguments.kv_watermarks,
        is_preempting_lower_classes=arguments.preempt_lower_priority,
        order=OrderConfig(
            policy=arguments.scheduling_policy,
            default_ttft_slo_seconds=arguments.default_ttft_slo,
            tenant_weights=arguments.tenant_weights,
        ),
        dynamic=DynamicConfig(
            window_seconds=arguments.batch_window, preferred_sizes=arguments.preferred_batch_sizes
        ),
    )
