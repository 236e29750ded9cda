"""What running rows get of a step: every decode a token, prompts under way their chunks, room if need be.

Knows the order of rows, blocks and budgets. Who gives way is `Preemptor`'s choice; taking a row's blocks away
is the scheduler's, which this is given as a function.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.scheduler.base import DecodeLoad
from tidemill_engine.step import IntArray, int_array

if TYPE_CHECKING:
    from tidemill_engine.scheduler.base import ChunkPolicy
    from tidemill_engine.scheduler.parts import Parts
    from tidemill_engine.scheduler.plan import StepPlan

logger = logging.getLogger(__name__)

NEWCOMERS_SHARE = 4
"""Prompts under way leave one in so many prompt tokens of a step to requests that wait."""
SHARE_PAUSE_STEPS = 16
CROWD_RATIO = 16
"""Where so many wait for each that decodes, these are few enough to be held up by one long step."""
LEAST_PROMPT_TOKENS = 16
"""More prompts than would fit if each lacked so many tokens are not looked through."""


class RunningWork:
    """Fills a plan with what running rows want."""

    def __init__(self, parts: Parts, chunks: ChunkPolicy, preempt: Callable[[int, StepPlan], None]) -> None:
        self._parts = parts
        self._rows = parts.rows
        self._kv = parts.kv
        self._queue = parts.queue
        self._composer = parts.composer
        self._chunks = chunks
        self._preempt = preempt
        self._has_left_share = False
        self._num_taken_before = 0
        self._share_again_at_step = 0

    def fill(self, plan: StepPlan) -> None:
        """Add decodes, then chunks of prompts under way."""
        lacking = self._rows.lacking()
        self._add_decodes(plan, lacking)
        self._add_chunks(plan, lacking)

    def unblock(self, plan: StepPlan) -> None:
        """Break a deadlock: rows run, none can go on and nothing is in flight, so the last one makes room."""
        while plan.is_empty:
            victim = self._parts.preemptor.choose(plan.step_id, spares_resumed=False)
            if victim is None:
                return
            self._preempt(victim, plan)
            self.fill(plan)

    def compact(self, plan: StepPlan, max_blocks: int) -> None:
        """Move rows' blocks together until the number of blocks that may be moved is used up."""
        left = max_blocks
        for row in self._rows.running().tolist():
            if int(self._kv.num_held[row]) > left:
                continue
            change = self._kv.compact(row)
            if change is not None:
                plan.fork(change)
                left -= len(change.copies)
                plan.num_compacted += 1
        logger.info("compaction at step %d makes %d rows contiguous", plan.step_id, plan.num_compacted)

    def _add_decodes(self, plan: StepPlan, lacking: IntArray) -> None:
        """Give every decoding row its next token, preempting from the end of the order if blocks run out."""
        rows = int_array((lacking == 1).nonzero()[0])
        if len(rows) > plan.token_budget:
            rows = self._in_order(rows)[: plan.token_budget]
        missing = self._kv.num_missing(rows, self._rows.num_computed_tokens[rows] + 1)
        if int(missing.sum()) > self._kv.num_free_blocks:
            rows, missing = self._make_room(plan, self._in_order(rows))
        self._composer.add(plan, rows, np.ones_like(rows), missing)

    def _make_room(self, plan: StepPlan, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Preempt until the decodes fit, or nobody may be; return those that fit now and what they lack."""
        while True:
            missing = self._kv.num_missing(rows, self._rows.num_computed_tokens[rows] + 1)
            if int(missing.sum()) <= self._kv.num_free_blocks + self._num_retiring_blocks():
                break
            victim = self._parts.preemptor.choose(plan.step_id, spares_resumed=True)
            if victim is None:
                break
            self._preempt(victim, plan)
            rows = rows[rows != victim]
        fits = (missing == 0) | (missing.cumsum() <= self._kv.num_free_blocks)
        return rows[fits], missing[fits]

    def _add_chunks(self, plan: StepPlan, lacking: IntArray) -> None:
        """Continue prompts that are under way, unless decodes are short of blocks."""
        rows = int_array(((lacking > 1) & self._rows.is_running).nonzero()[0])
        if len(rows) == 0 and len(self._queue) == 0:
            return
        rows = self._in_order(rows)
        plan.prefill_budget = self._chunks.prefill_budget(self._decode_load(plan, rows))
        if not plan.is_empty and self._parts.gate.is_critical(self._kv.num_held_blocks):
            return
        for_newcomers = self._share_of_newcomers(plan) if len(rows) else 0
        plan.prefill_budget = plan.num_chunk_tokens - for_newcomers
        for row in rows.tolist():
            if self._composer.num_prompt_tokens_left(plan) <= 0:
                break
            self._composer.add_chunk(plan, row)
        plan.prefill_budget += for_newcomers

    def _share_of_newcomers(self, plan: StepPlan) -> int:
        """Return how many prompt tokens the prompts under way leave to waiting requests.

        So short prompts move beside a long one. Where nobody could make use of it, it is tried less often.
        """
        num_taken = self._queue.num_taken
        if self._has_left_share and num_taken == self._num_taken_before:
            self._share_again_at_step = plan.step_id + SHARE_PAUSE_STEPS
        self._has_left_share = (
            self._composer.is_chunked
            and len(self._queue) > 0
            and self._rows.num_free > 0
            and self._parts.gate.is_open
            and plan.step_id >= self._share_again_at_step
        )
        self._num_taken_before = num_taken
        return plan.num_chunk_tokens // NEWCOMERS_SHARE if self._has_left_share else 0

    def _decode_load(self, plan: StepPlan, prefills: IntArray) -> DecodeLoad:
        """Say what the step's decodes weigh and where its first chunk starts."""
        rows = plan.rows[0] if plan.rows else int_array()
        return DecodeLoad(
            rows=rows,
            context_tokens=int(self._rows.num_tokens[rows].sum()),
            token_budget=plan.token_budget,
            num_waiting=len(prefills) + self._num_joining(),
            chunk_start=int(self._rows.num_computed_tokens[prefills[0]]) if len(prefills) else 0,
            ends_all_prompts=self._can_end_all_prompts(plan, prefills, len(rows)),
        )

    def _can_end_all_prompts(self, plan: StepPlan, prefills: IntArray, num_decodes: int) -> bool:
        """Say whether many wait for each that decodes, and the step's budget holds all that they need."""
        num_queued = len(self._queue)
        num_waiting = len(prefills) + num_queued
        if num_decodes == 0 or num_waiting < CROWD_RATIO * num_decodes or self._num_joining() < num_queued:
            return False
        if num_waiting * LEAST_PROMPT_TOKENS > plan.token_budget:
            return False
        under_way = self._rows.num_tokens[prefills] - self._rows.num_computed_tokens[prefills]
        left = plan.token_budget - int(under_way.sum())
        sharing = self._parts.sharing
        for request in self._queue.requests():
            offer = sharing.find(request)
            if offer.is_awaited or request.swapped is not None:
                return False
            left -= request.num_tokens - sharing.num_skipped_tokens(request, offer)
        return left >= 0

    def _num_joining(self) -> int:
        """Return how many waiting requests have a slot to take, as far as slots and the gate decide that."""
        return min(len(self._queue), self._rows.num_free) if self._parts.gate.is_open else 0

    def _in_order(self, rows: IntArray) -> IntArray:
        """Return rows by their requests' place in the order, first in order first."""
        ranked = sorted(rows.tolist(), key=lambda row: self._queue.victim_key(self._rows.request_at(row)))
        return int_array(ranked)

    def _num_retiring_blocks(self) -> int:
        """Return the blocks of stopped rows, which come back when the steps in flight retire."""
        stopped = int_array(np.flatnonzero(~self._rows.is_running & (self._kv.num_held > 0)))
        return int(self._kv.num_freed_in_turn(stopped)[-1]) if len(stopped) else 0
