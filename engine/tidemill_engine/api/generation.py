"""Runs one HTTP request's sequences in the core and hands out their deltas as they come.

Knows the core client, tokens and text. Does not know HTTP. Whatever ends it (a stop string, an error, a
cancelled handler) aborts the sequences that the core still works on.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from tidemill_engine.api.core_client import CoreClient, Mailbox
from tidemill_engine.api.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from tidemill_engine.api.protocol import GenerationOptions
from tidemill_engine.api.protocol.terms import ServiceTerms
from tidemill_engine.api.responses import Usage
from tidemill_engine.api.sequence import Delta, Sequence
from tidemill_engine.api.stop import StopMatcher
from tidemill_engine.errors import EngineError, EngineUnavailable
from tidemill_engine.messages import EngineRequest, RequestOutput, SamplingParams
from tidemill_engine.metrics import EngineMetrics, SequenceTimes
from tidemill_engine.queue_limits import QueueLimits, QueueMeter
from tidemill_engine.tenant_accounts import TenantUsage
from tidemill_engine.tokenizer import ModelTokenizer


@dataclass(frozen=True, kw_only=True)
class PreparedPrompt:
    """A prompt ready for the core: its token ids, and sampling that fits behind them."""

    token_ids: list[int]
    is_text: bool
    sampling: SamplingParams


class IndexedDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A delta of the choice with this index."""

    index: int
    delta: Delta


@dataclass(frozen=True, kw_only=True)
class _Order:
    """What all sequences of one HTTP request have in common beside their prompts."""

    options: GenerationOptions
    terms: ServiceTerms
    arrival_time: float


@dataclass(kw_only=True)
class _Live:
    """One sequence in progress, with the times that its metrics need."""

    index: int
    request: EngineRequest
    sequence: Sequence
    first_time: float | None = None
    queue_seconds: float = 0.0


class Generator:
    """Starts generations; knows how many may be in flight and how many tokens they hold."""

    def __init__(
        self,
        client: CoreClient,
        tokenizer: ModelTokenizer,
        metrics: EngineMetrics,
        *,
        limits: QueueLimits,
        clock: Callable[[], float],
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.metrics = metrics
        self.clock = clock
        self._limits = limits
        self.queue = QueueMeter(limits)
        self._live: dict[str, _Live] = {}

    @property
    def num_in_flight_tokens(self) -> int:
        """Count the prompt and output tokens of all sequences in progress."""
        return sum(
            len(live.request.prompt_token_ids) + live.sequence.num_output_tokens
            for live in self._live.values()
        )

    @contextmanager
    def generate(
        self,
        prompts: list[PreparedPrompt],
        options: GenerationOptions,
        terms: ServiceTerms,
        arrival_time: float,
    ) -> Iterator[Generation]:
        """Submit n sequences for every prompt; on leaving, abort those that have not ended."""
        base = uuid.uuid4().hex
        order = _Order(options=options, terms=terms, arrival_time=arrival_time)
        lives = [
            self._make_live(f"{base}-{index}", index, prompts[index // options.n], order)
            for index in range(len(prompts) * options.n)
        ]
        num_prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
        self.queue.require_room(len(lives), num_prompt_tokens, self.clock(), tenant=terms.tenant)
        requests = [live.request for live in lives]
        mailbox = self.client.submit(requests, max_in_flight=self._limits.most_requests)
        for live in lives:
            self._live[live.request.request_id] = live
            is_first = live.request.sibling == 0
            num_tokens = len(live.request.prompt_token_ids) * is_first
            self.queue.enter(live.request.request_id, num_tokens, tenant=terms.tenant)
        try:
            yield Generation(self, lives, mailbox, num_prompt_tokens=num_prompt_tokens)
        finally:
            self._end(lives)

    def _make_live(self, request_id: str, index: int, prompt: PreparedPrompt, order: _Order) -> _Live:
        terms = order.terms
        request = EngineRequest(
            request_id=request_id,
            handle=self.client.next_handle(),
            prompt_token_ids=prompt.token_ids,
            sampling=prompt.sampling,
            arrival_time=order.arrival_time,
            sibling=index % order.options.n,
            tenant=terms.tenant,
            tenant_weight=terms.tenant_weight,
            priority=terms.priority,
            ttft_slo_seconds=terms.ttft_slo_seconds,
            itl_slo_seconds=terms.itl_slo_seconds,
        )
        detokenizer = self._make_detokenizer(prompt)
        matcher = StopMatcher(order.options.stop)
        sequence = Sequence(
            detokenizer,
            matcher,
            min_tokens=prompt.sampling.min_tokens,
            stop_token_ids=prompt.sampling.stop_token_ids,
        )
        return _Live(index=index, request=request, sequence=sequence)

    def _make_detokenizer(self, prompt: PreparedPrompt) -> Detokenizer:
        """Return the cheap way to text where the tokenizer allows it."""
        pieces = self.tokenizer.byte_pieces
        if pieces is not None:
            return ByteDetokenizer(pieces, prompt.token_ids, prompt_is_text=prompt.is_text)
        return WindowDetokenizer(self.tokenizer.decode, prompt.token_ids, prompt_is_text=prompt.is_text)

    def _end(self, lives: list[_Live]) -> None:
        aborted = [live for live in lives if not live.sequence.is_finished]
        self.client.abort(live.request.request_id for live in lives)
        now = self.clock()
        for live in lives:
            self._live.pop(live.request.request_id, None)
            self.queue.leave(live.request.request_id, now)
            self.metrics.on_tenant_usage(live.request.tenant, _tenant_usage(live))
        for live in aborted:
            self.metrics.on_sequence_end(self.times(live, "abort"))

    def times(self, live: _Live, finish_reason: str) -> SequenceTimes:
        """Gather what the metrics record at a sequence's end."""
        return SequenceTimes(
            finish_reason=finish_reason,
            prompt_tokens=len(live.request.prompt_token_ids),
            output_tokens=live.sequence.num_output_tokens,
            arrival=live.request.arrival_time,
            first_token=live.first_time,
            end=self.clock(),
            queue_seconds=live.queue_seconds,
        )


class Generation:
    """The sequences of one HTTP request, as a stream of deltas."""

    def __init__(
        self, generator: Generator, lives: list[_Live], mailbox: Mailbox, *, num_prompt_tokens: int
    ) -> None:
        self._generator = generator
        self._lives = {live.request.request_id: live for live in lives}
        self._mailbox = mailbox
        self._num_prompt_tokens = num_prompt_tokens

    @property
    def indices(self) -> range:
        """Return the indices of the choices."""
        return range(len(self._lives))

    def usage(self) -> Usage:
        """Return what has been used so far; a prompt counts once however many siblings it has."""
        sequences = [live.sequence for live in self._lives.values()]
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=sum(sequence.num_output_tokens for sequence in sequences),
            cached_tokens=min(sum(s.num_cached_tokens for s in sequences), self._num_prompt_tokens),
        )

    async def batches(self) -> AsyncIterator[list[IndexedDelta]]:
        """Yield, until all sequences have ended, everything that came since the last time as one batch."""
        num_open = len(self._lives)
        while num_open:
            batch = self._fold(await self._mailbox.take_all())
            num_open -= sum(item.delta.finish_reason is not None for item in batch)
            if batch:
                yield batch

    def _fold(self, outputs: list[RequestOutput]) -> list[IndexedDelta]:
        by_id: dict[str, list[RequestOutput]] = {}
        if len(self._lives) == 1:  # as nearly always
            by_id[outputs[0].request_id] = outputs
        else:
            for output in outputs:
                by_id.setdefault(output.request_id, []).append(output)
        batch = []
        for request_id, of_one in by_id.items():
            live = self._lives[request_id]
            if live.sequence.is_finished:
                continue
            self._note_first(live, of_one[0])
            delta = live.sequence.push(of_one)
            if delta.finish_reason is not None:
                self._note_end(live, delta)
            if not delta.is_empty:
                batch.append(IndexedDelta(index=live.index, delta=delta))
        return batch

    def _note_first(self, live: _Live, output: RequestOutput) -> None:
        if live.first_time is None and output.token_ids:
            live.first_time = self._generator.clock()
            self._generator.queue.start(live.request.request_id, live.first_time)
            live.queue_seconds = output.queue_seconds or 0.0
            self._generator.metrics.on_first_token(live.first_time - live.request.arrival_time)

    def _note_end(self, live: _Live, delta: Delta) -> None:
        generator = self._generator
        generator.queue.leave(live.request.request_id, generator.clock())
        generator.client.abort([live.request.request_id])  # where a stop string ended it; else the core has
        reason = delta.finish_reason or "error"
        generator.metrics.on_sequence_end(generator.times(live, reason))
        if reason == "error":
            raise EngineError(
                delta.error or "the engine could not go on with this request", code="generation_failed"
            )
        if reason == "abort":
            raise EngineUnavailable("the engine ended this request before it was complete", code="aborted")


def _tenant_usage(live: _Live) -> TenantUsage:
    """Return what a sequence adds to its tenant's account; siblings share their prompt."""
    return TenantUsage(
        requests=1,
        prompt_tokens=0 if live.request.sibling else len(live.request.prompt_token_ids),
        cached_tokens=0 if live.request.sibling else live.sequence.num_cached_tokens,
        output_tokens=live.sequence.num_output_tokens,
    )
