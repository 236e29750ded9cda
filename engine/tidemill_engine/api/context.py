"""What the handlers of both servers share: one object, made at the start and handed to the apps.

Knows the parts and wires figures from them; does not know routes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemill_engine.api.chat_template import ChatTemplate
from tidemill_engine.api.config import ServeConfig
from tidemill_engine.api.core_client import CoreClient, CoreNews
from tidemill_engine.api.drain import DrainController
from tidemill_engine.api.generation import Generator
from tidemill_engine.api.keys import ApiKeys
from tidemill_engine.api.protocol import ModelLimits
from tidemill_engine.api.state import EngineState, RequestNotTaken, Verdict
from tidemill_engine.api.token_file import TokenFile
from tidemill_engine.heartbeat import MIN_STEP_SECONDS, HeartbeatReader
from tidemill_engine.messages import CoreFailed, CoreReady, CoreStats, LoadProgress
from tidemill_engine.metrics import EngineMetrics, Snapshot
from tidemill_engine.queue_limits import QueueLimits
from tidemill_engine.tokenizer import ModelTokenizer


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """What requests need of the model once core and tokenizer are there."""

    tokenizer: ModelTokenizer
    template: ChatTemplate
    limits: ModelLimits
    generator: Generator


class RequestCounter:
    """HTTP requests for completions that are being answered; the drain waits for the last."""

    def __init__(self) -> None:
        self.num = 0
        self.num_answered = 0
        self.num_failed = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self, num: int) -> None:
        """Count a request in."""
        self.num += num
        if self.num:
            self._idle.clear()

    def leave(self, num: int) -> None:
        """Count a request out."""
        self.num -= num
        if not self.num:
            self._idle.set()

    def note(self, status: int, *, is_retried: bool) -> None:
        """Count an answer, and whether it was the engine's fault; one that goes elsewhere is neither."""
        if not is_retried:
            self.num_answered += 1
            self.num_failed += status >= 500

    async def wait_idle(self) -> None:
        """Wait until nothing is being answered."""
        await self._idle.wait()


class ApiContext:
    """The engine as seen from the API process."""

    def __init__(self, config: ServeConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.clock = clock
        self.created = int(time.time())
        self.state = EngineState()
        token_file = config.admin.token_file
        self.keys = ApiKeys(
            config.http.api_key,
            config.http.api_keys_file,
            TokenFile(token_file) if token_file is not None else None,
        )
        self.client = CoreClient(self.on_news, clock)
        self.metrics = EngineMetrics(config.served_model_names[0], self.snapshot)
        self.drain = DrainController(self.state, self.client, config.drain)
        self.heartbeat: HeartbeatReader | None = None
        self.failure_reason: str | None = None
        self.requests = RequestCounter()
        self.news = asyncio.Event()
        """Set whenever the core has become ready or has failed."""
        self._tokenizer: ModelTokenizer | None = None
        self._template: ChatTemplate | None = None
        self._model: LoadedModel | None = None

    def on_tokenizer(self, tokenizer: ModelTokenizer, template: ChatTemplate) -> None:
        """Take the tokenizer, which loads beside the core."""
        self._tokenizer, self._template = tokenizer, template
        self._complete()

    def on_news(self, news: CoreNews) -> None:
        """Take what the core says of itself."""
        if isinstance(news, CoreStats):
            self.state.on_stats(news, self.clock())
            self.metrics.on_stats(news)
        elif isinstance(news, LoadProgress):
            self.state.progress = news
        elif isinstance(news, CoreReady):
            self.state.ready = news
            self._complete()
        elif isinstance(news, CoreFailed):
            self.fail(news.reason, news.message)

    def fail(self, reason: str, message: str) -> None:
        """Note that this engine can't go on; the first reason stays."""
        self.failure_reason = self.failure_reason or reason
        self.state.on_failed(message)
        self.news.set()

    def _complete(self) -> None:
        """Become ready once both the core and the tokenizer are."""
        ready, tokenizer, template = self.state.ready, self._tokenizer, self._template
        if ready is None or tokenizer is None or template is None:
            return
        max_queued = self.config.max_queued_requests
        limits = ModelLimits(
            max_model_len=min(ready.max_model_len, ready.num_blocks * ready.block_size),
            vocab_size=ready.vocab_size,
            max_sequences=max(max_queued, 1),
            is_strict=self.config.is_strict_max_tokens,
            defaults=self.config.sampling_defaults,
        )
        generator = Generator(
            self.client,
            tokenizer,
            self.metrics,
            limits=QueueLimits(
                max_requests=ready.max_num_seqs + max_queued,
                max_waiting_tokens=self.config.max_num_queued_tokens,
            ),
            clock=self.clock,
        )
        self._model = LoadedModel(tokenizer=tokenizer, template=template, limits=limits, generator=generator)
        self.state.on_ready(ready, self.clock())
        self.news.set()

    def require_model(self) -> LoadedModel:
        """Return the model, or raise where no new request can be taken."""
        self.state.require_accepting()
        if self._model is None:
            raise RequestNotTaken("the model is still loading", code="loading")
        return self._model

    def served_names(self) -> Sequence[str]:
        """Return the names that requests may use."""
        return self.config.served_model_names

    def liveness(self) -> Verdict:
        """Say whether the core makes progress.

        No promise but that of a long step goes further than the least step's time, which a core that chooses
        no step promises again and again.
        """
        now = self.clock()
        seconds_left = self._deadline() - now if self.heartbeat is not None else 0.0
        return self.state.liveness(
            now, is_overdue=seconds_left < 0.0, is_in_long_step=seconds_left > MIN_STEP_SECONDS
        )

    def _deadline(self) -> float:
        """Return when the core must have beaten again; the first is due a step's time after readiness."""
        deadline = self.heartbeat.deadline if self.heartbeat is not None else None
        return self.state.ready_time + MIN_STEP_SECONDS if deadline is None else deadline

    def load_header(self) -> str:
        """Write what a gateway needs to know of the load, for the head of every answer."""
        now = self.snapshot()
        stats = now.stats
        if stats is None or not stats.num_total_blocks:
            return f"running=0 waiting=0 kv=0 tokens={now.num_in_flight_tokens}"
        usage = 1 - stats.num_free_blocks / stats.num_total_blocks
        return (
            f"running={stats.num_running} waiting={stats.num_waiting} kv={usage:.4f} "
            f"tokens={now.num_in_flight_tokens}"
        )

    def snapshot(self) -> Snapshot:
        """Gather the figures of this moment."""
        progress = self.state.progress
        return Snapshot(
            ready=self.state.ready,
            stats=self.state.stats,
            is_ready=self.state.readiness().is_ok,
            is_draining=self.drain.is_draining,
            num_in_flight=self.client.num_in_flight,
            num_in_flight_tokens=self._model.generator.num_in_flight_tokens if self._model is not None else 0,
            loaded_bytes=progress.loaded_bytes if progress is not None else 0,
            total_bytes=progress.total_bytes if progress is not None else 0,
        )
