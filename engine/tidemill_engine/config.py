"""What the engine core is told at its start, as small frozen values; a bad one raises with field and value.

Knows limits and defaults. Does not read flags, environment, files or the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

import msgspec

from tidemill_engine.errors import InvalidConfig

Dtype = Literal["auto", "bfloat16", "float32"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
Quantization = Literal["int8", "int4", "fp8"]
QUANTIZATIONS: tuple[Quantization, ...] = get_args(Quantization)
Kernels = Literal[
    "auto",
    "amx",
    "avx512",
    "avx512vnni",
    "avx512f",
    "avxvnni",
    "avx2",
    "neonbf16",
    "neondot",
    "neon",
    "torch",
]
KERNELS: tuple[Kernels, ...] = get_args(Kernels)
KvDtype = Literal["auto", "fp8", "int8"]
KV_DTYPES: tuple[KvDtype, ...] = get_args(KvDtype)
SchedulerKind = Literal["continuous", "static", "dynamic"]
SCHEDULERS: tuple[SchedulerKind, ...] = get_args(SchedulerKind)
Policy = Literal["fifo", "sjf", "priority", "slo"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
DeviceName = Literal["auto", "cpu", "cuda"]
DEVICES: tuple[DeviceName, ...] = get_args(DeviceName)
AttentionBackendName = Literal["auto", "tidemill", "flash-attn", "flashinfer"]
ATTENTION_BACKENDS: tuple[AttentionBackendName, ...] = get_args(AttentionBackendName)
GPU_LIBRARIES: tuple[AttentionBackendName, ...] = ("flash-attn", "flashinfer")
AdmissionMode = Literal["adaptive", "strict"]
ADMISSIONS: tuple[AdmissionMode, ...] = get_args(AdmissionMode)


def _require(condition: bool, name: str, value: object, wanted: str) -> None:
    """Raise unless the condition holds."""
    if not condition:
        raise InvalidConfig(f"{name} must be {wanted}, not {value!r}", param=name)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model, in which number format, and how long a sequence may be (None: what the model allows)."""

    uri: str
    dtype: Dtype = "auto"
    max_model_len: int | None = None
    seed: int = 0
    quantization: Quantization | None = None
    """Matrices made narrower as they are loaded. On a CPU int8, or int4 in groups of 32, with activations in
    int8; on a GPU int8 or fp8, with activations as they are. A checkpoint that is quantised needs none."""
    kernels: Kernels = "auto"
    """Which instructions compute: the best that this CPU has, a named set of them, or torch's operators."""

    def __post_init__(self) -> None:
        _require(self.kernels in KERNELS, "cpu_kernels", self.kernels, f"one of {', '.join(KERNELS)}")
        is_known = self.quantization is None or self.quantization in QUANTIZATIONS
        _require(is_known, "quantization", self.quantization, f"one of {', '.join(QUANTIZATIONS)}")
        _require(
            self.quantization is None or self.dtype != "float32",
            "dtype",
            self.dtype,
            "auto or bfloat16 beside quantization",
        )
        _require(self.dtype in DTYPES, "dtype", self.dtype, f"one of {', '.join(DTYPES)}")
        _require(
            self.max_model_len is None or self.max_model_len >= 1, "max_model_len", self.max_model_len, ">= 1"
        )
        _require(0 <= self.seed < 2**63, "seed", self.seed, "between 0 and 2**63 - 1")


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The paged KV cache: `num_blocks`, else `memory_bytes`, else what the machine's memory allows."""

    block_size: int = 32
    num_blocks: int | None = None
    memory_bytes: int | None = None
    is_prefix_caching: bool = True
    memory_utilization: float = 0.90
    """Share of the memory limit that model, work space and cache may fill together."""
    swap_bytes: int = 0
    """CPU memory for the blocks of preempted requests; 0: they are recomputed."""
    dtype: KvDtype = "auto"
    """auto: the model's. Narrower ones are for GPUs; each head of each token has a scale then."""

    def __post_init__(self) -> None:
        known = f"one of {', '.join(KV_DTYPES)}"
        _require(self.dtype in KV_DTYPES, "kv_cache_dtype", self.dtype, known)
        _require(self.swap_bytes >= 0, "swap_space", self.swap_bytes, ">= 0")
        share = self.memory_utilization
        _require(0.05 <= share <= 0.99, "gpu_memory_utilization", share, "between 0.05 and 0.99")
        is_power = self.block_size > 0 and self.block_size & (self.block_size - 1) == 0
        _require(
            is_power and self.block_size <= 1024, "block_size", self.block_size, "a power of two up to 1024"
        )
        _require(self.num_blocks is None or self.num_blocks >= 1, "num_kv_blocks", self.num_blocks, ">= 1")
        _require(
            self.memory_bytes is None or self.memory_bytes >= 1,
            "kv_cache_memory_bytes",
            self.memory_bytes,
            ">= 1",
        )


@dataclass(frozen=True, kw_only=True)
class Watermarks:
    """Shares of the KV cache: admission stops above `high` and, once shut, opens again below `low`."""

    high: float = 0.90
    low: float = 0.70
    critical: float = 0.95

    def __post_init__(self) -> None:
        _require(
            0.0 < self.low < self.high < self.critical <= 1.0,
            "watermarks",
            (self.low, self.high, self.critical),
            "ordered 0 < low < high < critical <= 1",
        )


@dataclass(frozen=True, kw_only=True)
class OrderConfig:
    """In which order waiting requests are admitted, and how tenants share."""

    policy: Policy = "fifo"
    default_ttft_slo_seconds: float = 30.0
    tenant_weights: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require(self.policy in POLICIES, "scheduling_policy", self.policy, f"one of {', '.join(POLICIES)}")
        slo = self.default_ttft_slo_seconds
        _require(0.0 < slo <= 86400.0, "default_ttft_slo", slo, "above 0 and at most 86400 seconds")
        for tenant, weight in self.tenant_weights.items():
            _require(0.001 <= weight <= 1000.0, f"tenant_weights[{tenant}]", weight, "between 0.001 and 1000")


@dataclass(frozen=True, kw_only=True)
class DynamicConfig:
    """When the dynamic scheduler starts a batch: a preferred size waits, or the window has passed."""

    window_seconds: float = 0.1
    preferred_sizes: tuple[int, ...] = ()
    """None given: a full batch only."""

    def __post_init__(self) -> None:
        window = self.window_seconds
        _require(0.0 <= window <= 3600.0, "batch_window", window, "between 0 and 3600 seconds")
        sizes = self.preferred_sizes
        _require(all(size >= 1 for size in sizes), "preferred_batch_sizes", sizes, "positive numbers")


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
    """Which scheduler, hard limits of one step, and the rules of admission and order."""

    kind: SchedulerKind = "continuous"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_chunk_tokens: int = 512
    """Of one prompt in one step: what a step could take beyond it, it takes of other prompts."""
    is_chunked_prefill: bool = True
    """Off: a prompt is computed in one step, for which the budget is raised to the longest prompt."""
    admission: AdmissionMode = "adaptive"
    watermarks: Watermarks = field(default_factory=Watermarks)
    is_preempting_lower_classes: bool = False
    """Whether a waiting request that does not fit takes the place of running ones of lower classes."""
    order: OrderConfig = field(default_factory=OrderConfig)
    dynamic: DynamicConfig = field(default_factory=DynamicConfig)

    def __post_init__(self) -> None:
        _require(self.kind in SCHEDULERS, "scheduler", self.kind, f"one of {', '.join(SCHEDULERS)}")
        _require(self.admission in ADMISSIONS, "admission", self.admission, " or ".join(ADMISSIONS))
        _require(1 <= self.max_num_seqs <= 65536, "max_num_seqs", self.max_num_seqs, "between 1 and 65536")
        _require(
            1 <= self.max_num_batched_tokens <= 1 << 20,
            "max_num_batched_tokens",
            self.max_num_batched_tokens,
            "between 1 and 1048576",
        )
        _require(self.max_chunk_tokens >= 1, "max_chunk_tokens", self.max_chunk_tokens, "at least 1")

    @property
    def chunk_tokens(self) -> int:
        """Return the most tokens that a step takes of one prompt where prompts are computed in chunks."""
        return min(self.max_chunk_tokens, self.max_num_batched_tokens)

    def step_tokens(self, longest: int) -> int:
        """Return the most tokens of a step where the longest prompt has so many."""
        is_whole = self.kind == "continuous" and not self.is_chunked_prefill
        return max(self.max_num_batched_tokens, longest) if is_whole else self.max_num_batched_tokens


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """On what steps are computed, by how many processes together, and how on a GPU."""

    name: DeviceName = "auto"
    """auto: a GPU where there is one."""
    tensor_parallel_size: int = 1
    attention_backend: AttentionBackendName = "auto"
    has_graphs: bool = True
    """Whether decode steps on a GPU are captured as CUDA graphs."""

    def __post_init__(self) -> None:
        _require(self.name in DEVICES, "device", self.name, f"one of {', '.join(DEVICES)}")
        size, backend = self.tensor_parallel_size, self.attention_backend
        _require(1 <= size <= 64, "tensor_parallel_size", size, "between 1 and 64")
        known = f"one of {', '.join(ATTENTION_BACKENDS)}"
        _require(backend in ATTENTION_BACKENDS, "attention_backend", backend, known)


@dataclass(frozen=True, kw_only=True)
class CoreConfig:
    """Everything the core process is told; crosses to it as JSON."""

    model: ModelConfig
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    log_level: str = "info"

    def to_json(self) -> str:
        """Return the text for `--config`."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str) -> CoreConfig:
        """Read the text of `--config`; unknown shapes and bad values raise `InvalidConfig`."""
        try:
            return msgspec.json.decode(text, type=CoreConfig)
        except msgspec.MsgspecError as error:
            raise InvalidConfig(f"the core's configuration can't be read: {error}") from error
