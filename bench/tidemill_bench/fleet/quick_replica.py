"""A replica without a scheduler's bookkeeping: the same rules, counted instead of carried out, in leaps.

Knows continuous batching in the order of arrival: decodes first, then prompts under way in chunks, then new
requests while a slot is free and the KV cache is below its watermark; the newest gives way when blocks run
out, and is computed again. Where nothing changes, many decode steps are one sum. Refuses to know prefixes,
tenants and policies of order. `tests/bench/test_fleet_replicas.py` holds it against the engine's own
scheduler.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from typing import TYPE_CHECKING

from tidemill_bench.fleet.replica import Latencies
from tidemill_engine.scheduler.chunking import MIN_CHUNK_TOKENS
from tidemill_engine.scheduler.running import NEWCOMERS_SHARE
from tidemill_engine.scheduler.step_model import TILE_TOKENS
from tidemill_operator.autoscaling.model import EngineFigures, StepTimes

if TYPE_CHECKING:
    from tidemill_bench.fleet.requests import FleetRequest
    from tidemill_bench.fleet.settings import Machine

HIGH_WATERMARK = 0.9


class QuickEngine:
    """One engine process."""

    def __init__(self, machine: Machine, started: float, step_error: float = 0.0) -> None:
        self._machine = machine
        self._fixed, self._token, self._context, self._pair, self._row = machine.step_time.coefficients
        self._capacity = machine.capacity_tokens
        self._admitted_tokens = HIGH_WATERMARK * machine.capacity_tokens
        self._max_num_seqs = machine.max_num_seqs
        self._started = started
        self._step_error = step_error
        self._now = started
        self._tick = 0
        self._waiting: deque[FleetRequest] = deque()
        self._prefilling: deque[FleetRequest] = deque()
        self._decoding: list[tuple[int, int, FleetRequest]] = []
        """A heap by (finish tick, index)."""
        self._num_decoding = 0
        self._context_tokens = 0
        self._prefill_tokens_held = 0
        self._prefill_tokens_due = 0
        self._waiting_tokens = 0
        self._prefilled = 0.0
        self._output = 0.0
        self._ended = 0.0
        self.num_preemptions = 0
        self._ttft, self._itl = Latencies(), Latencies()

    @property
    def num_in_flight(self) -> int:
        """Return how many requests it has, waiting or running."""
        return len(self._waiting) + len(self._prefilling) + self._num_decoding

    def add(self, request: FleetRequest, now: float) -> None:
        """Take a request; the engine has been advanced to `now`."""
        self._now = max(self._now, now)
        self._waiting.append(request)
        self._waiting_tokens += request.num_prompt

    def advance(self, until: float) -> None:
        """Carry out every step that begins before `until`."""
        while self._now < until:
            if self._prefilling or (self._waiting and self._has_room(self._waiting[0])):
                self._mixed_step()
            elif self._num_decoding:
                self._leap(until)
            else:
                self._now = until

    def take_unstarted(self) -> list[FleetRequest]:
        """Give back the waiting requests of which no client has seen a token."""
        gone = [request for request in self._waiting if not request.has_started]
        self._waiting = deque(request for request in self._waiting if request.has_started)
        self._waiting_tokens = sum(self._prompt(request) for request in self._waiting)
        return gone

    def take_all(self) -> list[FleetRequest]:
        """Give back everything: the process has died."""
        everything = [*self._waiting, *self._prefilling, *(request for _, _, request in self._decoding)]
        self._waiting.clear()
        self._prefilling.clear()
        self._decoding.clear()
        self._num_decoding = self._context_tokens = self._prefill_tokens_held = self._prefill_tokens_due = 0
        self._waiting_tokens = 0
        return everything

    def figures(self, now: float) -> EngineFigures:
        """Return what it reports of itself."""
        machine, error = self._machine, 1.0 + self._step_error
        held = (self._context_tokens + self._prefill_tokens_held) / machine.block_size
        num_running = self._num_decoding + len(self._prefilling)
        return EngineFigures(
            sampled_at=now,
            process_started=self._started,
            num_running=num_running,
            num_waiting=len(self._waiting),
            held_blocks=min(machine.num_blocks, math.ceil(held + num_running / 2)),
            total_blocks=machine.num_blocks,
            block_size_tokens=machine.block_size,
            max_num_seqs=machine.max_num_seqs,
            waiting_prompt_tokens=self._waiting_tokens + self._prefill_tokens_due,
            prefill_tokens_total=self._prefilled,
            cached_tokens_total=0.0,
            output_tokens_total=self._output,
            requests_total=self._ended,
            time_to_first_token=self._ttft.histogram(),
            inter_token=self._itl.histogram(),
            step_times=StepTimes(
                fixed_seconds=self._fixed * error,
                token_seconds=self._token * error,
                context_token_seconds=self._context * error,
                attention_pair_seconds=self._pair * error,
                row_seconds=self._row * error,
            ),
        )

    @staticmethod
    def _prompt(request: FleetRequest) -> int:
        """Return what has to be computed before its next token: after a preemption, its output too."""
        return request.num_prompt + request.num_generated

    def _has_room(self, request: FleetRequest) -> bool:
        """Say whether a request may join those that run; alone it always may."""
        num_running = len(self._prefilling) + self._num_decoding
        if num_running == 0:
            return True
        need = request.num_prompt + request.num_generated
        committed = self._context_tokens + self._prefill_tokens_held + self._prefill_tokens_due
        return num_running < self._max_num_seqs and committed + need <= self._admitted_tokens

    def _mixed_step(self) -> None:
        """Do one step: every decode, then prompts under way, then new ones, as the budget allows."""
        budget = self._chunk_budget()
        waiting, prefilling = self._waiting, self._prefilling
        may_join = bool(waiting) and self._has_room(waiting[0])
        left, pairs = budget, 0.0
        if prefilling:
            for_newcomers = budget // NEWCOMERS_SHARE if may_join else 0
            left -= for_newcomers
            for request in prefilling:
                chunk = min(left, self._prompt(request) - request.num_computed)
                if chunk <= 0:
                    break
                pairs += chunk * (request.num_computed + chunk / 2)
                request.num_computed += chunk
                left -= chunk
            left += for_newcomers
        self._note_computed(budget - left)
        while may_join and left > 0:
            request = waiting.popleft()
            need = self._prompt(request)
            chunk = min(left, need)
            pairs += chunk * chunk / 2
            request.num_computed = chunk
            left -= chunk
            self._waiting_tokens -= need
            self._prefill_tokens_due += need
            self._note_computed(chunk)
            prefilling.append(request)
            may_join = bool(waiting) and self._has_room(waiting[0])
        done = [r for r in prefilling if r.num_computed == r.num_prompt + r.num_generated]
        num_tokens = self._num_decoding + budget - left
        self._pass(1, self._step_seconds(num_tokens, self._num_decoding + len(done)) + self._pair * pairs)
        for request in done:
            prefilling.remove(request)
            self._start(request)
        self._make_room()

    def _note_computed(self, chunk: int) -> None:
        """Count tokens of prompts as computed."""
        self._prefill_tokens_due -= chunk
        self._prefill_tokens_held += chunk
        self._prefilled += chunk

    def _chunk_budget(self) -> int:
        """Return how many prompt tokens may join the decodes so that the step keeps the inter-token SLO."""
        count = self._num_decoding
        most = self._machine.max_num_batched_tokens - count
        if not count:
            return most
        spare = self._machine.itl_slo_seconds - self._step_seconds(0, count)
        return max(MIN_CHUNK_TOKENS, min(most, int(spare / self._token) - count))

    def _step_seconds(self, num_tokens: int, num_rows: int) -> float:
        """Return a step's time but for its prompts' attention."""
        return (
            self._fixed
            + self._token * -(-num_tokens // TILE_TOKENS) * TILE_TOKENS
            + self._context * self._context_tokens
            + self._row * num_rows
        )

    def _start(self, request: FleetRequest) -> None:
        """Give a request whose prompt is computed its first token, or its next one after a preemption."""
        self._prefill_tokens_held -= request.num_computed
        if not request.has_started:
            request.first_token = self._now
            self._ttft.add(self._now - request.arrival)
        request.num_generated += 1
        self._output += 1
        if request.num_generated >= request.num_output:
            request.last_token = self._now
            self._ended += 1
            return
        request.finish_tick = self._tick + request.num_output - request.num_generated
        heapq.heappush(self._decoding, (request.finish_tick, request.index, request))
        self._num_decoding += 1
        self._context_tokens += request.num_prompt + request.num_generated

    def _leap(self, until: float) -> None:
        """Do as many steps of pure decoding as pass before anything changes."""
        count = self._num_decoding
        first = self._step_seconds(count, count)
        growth = self._context * count
        steps = self._decoding[0][0] - self._tick
        free = self._capacity - self._context_tokens
        steps = max(1, min(steps, free // count, _steps_within(until - self._now, first, growth)))
        self._pass(steps, steps * first + growth * steps * (steps - 1) / 2)
        self._make_room()

    def _pass(self, steps: int, seconds: float) -> None:
        """Let so many steps take so long: every decode gets a token in each, and some get their last."""
        self._now += seconds
        self._tick += steps
        count = self._num_decoding
        if not count:
            return
        self._output += steps * count
        self._context_tokens += steps * count
        self._itl.add(seconds / steps, steps * count)
        while self._decoding and self._decoding[0][0] <= self._tick:
            _, _, request = heapq.heappop(self._decoding)
            request.num_generated = request.num_output
            request.last_token = self._now
            self._num_decoding -= 1
            self._context_tokens -= request.num_prompt + request.num_output
            self._ended += 1

    def _make_room(self) -> None:
        """Send the newest decodes back to the queue while the next step's tokens do not fit."""
        while (
            self._context_tokens + self._prefill_tokens_held + self._num_decoding > self._capacity
            and self._num_decoding > 1
        ):
            place = max(range(len(self._decoding)), key=lambda i: self._decoding[i][1])
            _, _, request = self._decoding.pop(place)
            heapq.heapify(self._decoding)
            request.num_generated = request.num_output - (request.finish_tick - self._tick)
            self._num_decoding -= 1
            self._context_tokens -= request.num_prompt + request.num_generated
            self._waiting.appendleft(request)
            self._waiting_tokens += self._prompt(request)
            self.num_preemptions += 1


def _steps_within(seconds: float, first: float, growth: float) -> int:
    """Return how many steps begin within so long, where each takes `growth` more than the one before."""
    if growth <= 0:
        return math.ceil(seconds / first)
    middle = first / growth - 0.5
    return max(1, math.ceil(-middle + math.sqrt(middle * middle + 2 * seconds / growth)))
