"""Where the benchmarks touch the engine's scheduler: building one, telling it requests, reading its answers.

The only module here that knows how the engine's messages and configuration are shaped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tidemill_bench.smollm2 import VOCAB_SIZE
from tidemill_engine.config import AdmissionMode, OrderConfig, Policy, SchedulerConfig, SchedulerKind
from tidemill_engine.core.learning import Learning
from tidemill_engine.kv import KVCacheManager, PrefixRoots
from tidemill_engine.messages import EngineRequest, SamplingParams
from tidemill_engine.request import RequestLimits
from tidemill_engine.scheduler.factory import create_scheduler

if TYPE_CHECKING:
    from tidemill_bench.shapes import SimRequest
    from tidemill_engine.scheduler.base import Scheduler, StepOutputs
    from tidemill_engine.step import SchedulerOutput

LongArray = npt.NDArray[np.int64]
_STEPS_TO_LEARN = 256
_LEARN_EVERY = 8
_ROOT_KEY = b"no secret: a simulation must repeat"


@dataclass(frozen=True, kw_only=True)
class EngineSetup:
    """One engine: scheduler, policy, hard limits and memory."""

    scheduler: SchedulerKind = "continuous"
    policy: Policy = "fifo"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = SchedulerConfig.max_num_batched_tokens
    max_chunk_tokens: int = SchedulerConfig.max_chunk_tokens
    num_blocks: int = 6016
    block_size: int = 32
    max_model_len: int = 6016
    has_prefix_cache: bool = True
    is_chunked_prefill: bool = True
    admission: AdmissionMode = "adaptive"
    label: str = ""

    @property
    def name(self) -> str:
        """Return how reports call it."""
        if self.scheduler != "continuous":
            return self.scheduler
        return f"continuous {self.policy}{self.label}"

    def but(self, **changes: object) -> EngineSetup:
        """Return the same with other values."""
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class Told:
    """What one request was told after a step."""

    num_tokens: int
    is_last: bool = False
    error: str | None = None
    queue_seconds: float | None = None
    num_cached_tokens: int = 0


@dataclass(kw_only=True)
class SimEngine:
    """A scheduler as the core builds it, and what it learns from the steps that it is told of."""

    scheduler: Scheduler
    learning: Learning
    num_steps: int = 0

    def observe(self, output: SchedulerOutput, seconds: float) -> None:
        """Let it learn how long a step took: from every one at first, then from some, as nothing changes."""
        self.num_steps += 1
        if self.num_steps <= _STEPS_TO_LEARN or self.num_steps % _LEARN_EVERY == 0:
            self.learning.observe(output, seconds)


def build_engine(setup: EngineSetup) -> SimEngine:
    """Build the engine's own scheduler around an empty cache, wired as in the core process."""
    limits = RequestLimits(
        vocab_size=VOCAB_SIZE,
        max_model_len=setup.max_model_len,
        max_cached_tokens=setup.num_blocks * setup.block_size,
    )
    is_sharing = setup.has_prefix_cache and setup.scheduler == "continuous"
    kv = KVCacheManager(
        num_blocks=setup.num_blocks,
        block_size=setup.block_size,
        num_rows=setup.max_num_seqs,
        max_tokens_per_row=limits.max_sequence_tokens,
        roots=PrefixRoots(_ROOT_KEY, "simulated") if is_sharing else None,
    )
    config = SchedulerConfig(
        kind=setup.scheduler,
        max_num_seqs=setup.max_num_seqs,
        max_num_batched_tokens=setup.max_num_batched_tokens,
        max_chunk_tokens=setup.max_chunk_tokens,
        is_chunked_prefill=setup.is_chunked_prefill,
        admission=setup.admission,
        order=OrderConfig(policy=setup.policy),
    )
    learning = Learning(config.chunk_tokens)
    return SimEngine(scheduler=create_scheduler(config, kv, limits, learning.seams()), learning=learning)


def to_message(request: SimRequest, index: int) -> EngineRequest:
    """Return a request as the core gets it; its id is its index."""
    return EngineRequest(
        request_id=str(index),
        handle=index,
        prompt_token_ids=request.prompt_token_ids(index),
        sampling=SamplingParams(max_tokens=request.num_output_tokens, temperature=0.0, ignore_eos=True),
        arrival_time=request.arrival_seconds,
        tenant=request.tenant,
        priority=request.priority,
        ttft_slo_seconds=request.slo_ttft_seconds,
        itl_slo_seconds=request.slo_itl_seconds,
    )


def told(outputs: StepOutputs) -> tuple[LongArray, list[tuple[int, Told]]]:
    """Split a step's outputs: the requests that got one plain token, and those with more to say."""
    special = [
        (
            int(output.request_id),
            Told(
                num_tokens=len(output.token_ids),
                is_last=output.finish_reason is not None,
                error=output.error,
                queue_seconds=output.queue_seconds,
                num_cached_tokens=output.num_cached_tokens,
            ),
        )
        for output in outputs.special
    ]
    return outputs.handles, special
