"""What is the same for every policy in a simulated fleet: machine, SLO, cold starts, scrapes."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill_bench.step_time import StepTime

GPU_STEP_TIME = StepTime(
    coefficients=(0.050, 0.0006, 2.0e-7, 2.0e-8, 3.0e-5),
    provenance={
        "model": "a dense model of about 60 billion parameters on two GPUs",
        "machine": "none: round figures that data sheets suggest (each 2 TB/s, half of 300 TFLOPS)",
        "method": "not measured",
    },
)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One replica: how long its steps take and what fits."""

    step_time: StepTime = GPU_STEP_TIME
    max_num_seqs: int = 48
    max_num_batched_tokens: int = 512
    num_blocks: int = 4096
    block_size: int = 16
    num_gpus: int = 2
    itl_slo_seconds: float = 0.4
    """What the gateway tells the engine: chunks of prompts are sized by it."""

    @property
    def capacity_tokens(self) -> int:
        """Return how many tokens the KV cache holds."""
        return self.num_blocks * self.block_size


@dataclass(frozen=True, kw_only=True)
class Slo:
    """A request attains it if its first token and, on average, the others come in time."""

    ttft_seconds: float = 5.0
    itl_seconds: float = 0.4


@dataclass(frozen=True, kw_only=True)
class FleetSettings:
    """Everything around the replicas; seconds of the virtual clock."""

    machine: Machine = field(default_factory=Machine)
    slo: Slo = field(default_factory=Slo)
    min_replicas: int = 1
    max_replicas: int = 16
    startup_seconds: float = 90.0
    startup_spread: float = 0.15
    """A pod's start-up time is drawn within so much of the mean, on both sides."""
    scrape_interval_seconds: float = 5.0
    decision_delay_seconds: float = 1.0
    """From the scrape to pods being made or drained."""
    scrape_failure_share: float = 0.01
    drain_timeout_seconds: float = 300.0
    max_held_per_replica: int = 8
    """Gateways send a replica at most so many requests more than it runs at once, and hold the rest."""
    seed: int = 1
