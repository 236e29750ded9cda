"""A queue of waiting requests with a clock and estimates that tests may change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tidemill_engine.config import OrderConfig
from tidemill_engine.messages import EngineRequest, SamplingParams
from tidemill_engine.request import Request, RequestLimits
from tidemill_engine.scheduler.order import Estimates
from tidemill_engine.scheduler.waiting import WaitingQueue

LIMITS = RequestLimits(vocab_size=1000, max_model_len=100_000, max_cached_tokens=100_000)
BUDGET = 512


@dataclass
class Bench:
    """A queue with a clock, and estimates that tests may change: seconds per prompt and output token."""

    policy: str = "fifo"
    weights: dict[str, float] = field(default_factory=dict)
    affinity: Callable[[Request], bool] | None = None
    num_slots: int = 1 << 30
    per_prompt: float = 0.01
    per_output: float = 0.01
    now: float = 0.0
    num_added: int = 0

    def __post_init__(self) -> None:
        config = OrderConfig(policy=self.policy, tenant_weights=self.weights)  # type: ignore[arg-type]
        self.queue = WaitingQueue(
            config,
            max_chunk_tokens=BUDGET,
            max_num_seqs=self.num_slots,
            estimates=Estimates(prefill_seconds=self.prefill_seconds, total_seconds=self.total_seconds),
            affinity=self.affinity,
        )

    def prefill_seconds(self, request: Request) -> float:
        return self.per_prompt * request.num_tokens

    def total_seconds(self, request: Request) -> float:
        return self.prefill_seconds(request) + self.per_output * request.sampling.max_tokens

    def add(
        self,
        name: str,
        *,
        tokens: int = 10,
        outputs: int = 10,
        tenant: str = "",
        weight: float | None = None,
        priority: int = 0,
        ttft: float | None = None,
    ) -> Request:
        message = EngineRequest(
            request_id=name,
            handle=self.num_added,
            prompt_token_ids=[1] * tokens,
            sampling=SamplingParams(max_tokens=outputs),
            arrival_time=self.now,
            tenant=tenant,
            tenant_weight=weight,
            priority=priority,
            ttft_slo_seconds=ttft,
        )
        request = Request(message, order=self.num_added, seed=0, limits=LIMITS)
        self.num_added += 1
        self.queue.push(request, self.now)
        return request

    def order(self) -> list[str]:
        """Return the candidates without taking any."""
        return [request.request_id for request in self.queue.candidates(self.now)]

    def take(self, fits: Callable[[Request], bool] = lambda _request: True, most: int = 1) -> list[Request]:
        """Take the first candidates that fit."""
        taken: list[Request] = []
        for request in self.queue.candidates(self.now):
            if len(taken) < most and fits(request):
                self.queue.take(request, self.now)
                taken.append(request)
            if len(taken) == most:
                break
        return taken

    def drain(self, fits: Callable[[Request], bool] = lambda _request: True) -> list[str]:
        """Take everyone, one at a time."""
        names: list[str] = []
        while taken := self.take(fits):
            names += [request.request_id for request in taken]
        return names
