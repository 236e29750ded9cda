"""Static batching, as an honest baseline: a batch starts and ends together.

- A batch begins when the last one has left: as many waiting requests as have rows and memory.
- Every member reserves blocks for the longest prompt and the longest output of the batch.
- All prompts are computed first, padded to the longest; then everyone decodes in step over padded contexts,
  and those that have ended go on as padding until the slowest member ends. Nobody joins meanwhile.

Prompts are computed in pieces of the token budget, each with its share of the padding, so that memory stays
bounded. A step attends to nothing without a token: what running members attend to in their padding is put
off until others have ended, and what is left of it when the batch ends costs nothing. A member is told its
tokens as they come and its end at once, which a server that waits for the whole batch would not do: the
baseline is kinder than it must be. Knows batches.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.request import RequestStatus
from tidemill_engine.scheduler.lifecycle import RequestLifecycle
from tidemill_engine.scheduler.plan import StepPlan
from tidemill_engine.step import int_array

if TYPE_CHECKING:
    from tidemill_engine.config import SchedulerConfig
    from tidemill_engine.kv import KVCacheManager
    from tidemill_engine.request import Request, RequestLimits
    from tidemill_engine.scheduler.seams import Seams
    from tidemill_engine.step import BlockAppends, SchedulerOutput

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """What a padded batch looks like: its members and the lengths to which all of them are padded."""

    num_members: int = 0
    longest_prompt: int = 0
    longest_output: int = 0

    def with_member(self, request: Request) -> _Shape:
        """Return the batch with one more request."""
        output = request.max_total_tokens - request.num_prompt_tokens
        return _Shape(
            num_members=self.num_members + 1,
            longest_prompt=max(self.longest_prompt, request.num_prompt_tokens),
            longest_output=max(self.longest_output, output),
        )


class StaticScheduler(RequestLifecycle):
    """One padded batch after another."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        limits: RequestLimits,
        seams: Seams | None = None,
    ) -> None:
        super().__init__(config, kv, limits, seams)
        self._budget = config.max_num_batched_tokens
        self._batch = _Shape()
        self._unpaid_pairs = 0
        """Attention over padding for which there was no token yet."""
        self._unannounced: dict[int, BlockAppends] = {}

    def schedule(self, now: float) -> SchedulerOutput | None:
        """Choose the next step's tokens; None if there is nothing to compute now."""
        plan = StepPlan(
            step_id=self._step_id, now=now, token_budget=self._budget, prefill_budget=self._budget
        )
        if self._rows.num_free == self._rows.num_rows:
            self._begin_batch(plan)
        if not self._prefill(plan):
            self._decode(plan)
        self._pay_pairs(plan)
        return None if plan.is_empty else self._launch(plan)

    def num_to_begin(self, _now: float) -> int:
        """Return how many of the waiting requests should begin together now; at most so many do."""
        return len(self._queue)

    def _begin_batch(self, plan: StepPlan) -> None:
        """Give a new batch rows and the blocks that its padded members may ever need."""
        wanted = min(self.num_to_begin(plan.now), self._rows.num_rows)
        if wanted == 0:
            return
        batch = _Shape()
        members: list[Request] = []
        for request in self._queue.candidates(plan.now):
            grown = batch.with_member(request)
            needed = grown.num_members * self._kv.num_blocks_for(self._reserved_tokens(grown))
            if len(members) == wanted or needed > self._kv.num_free_blocks:
                break
            batch = grown
            members.append(request)
        self._batch = batch
        self._unpaid_pairs = 0
        logger.info("a batch of %d begins at step %d: %s", len(members), plan.step_id, batch)
        reserved = int_array([self._reserved_tokens(batch)])
        self._unannounced = {}
        for request in members:
            row = self._start(request, plan)
            appends = self._kv.append(int_array([row]), reserved)
            if appends is None:
                raise RuntimeError("blocks that were counted as free are not")
            self._unannounced[row] = appends

    def _reserved_tokens(self, batch: _Shape) -> int:
        """Return the tokens for which each member of a batch reserves blocks."""
        return min(batch.longest_prompt + batch.longest_output, self._limits.max_sequence_tokens)

    def _start(self, request: Request, plan: StepPlan) -> int:
        """Give a request a row."""
        self._queue.take(request, plan.now)
        row = self._rows.take(request, 0)
        request.status = RequestStatus.RUNNING
        request.first_scheduled_time = plan.now
        return row

    def _announce(self, row: int, plan: StepPlan) -> None:
        """Tell the runner of a row and its blocks in the step that first computes anything of it."""
        appends = self._unannounced.pop(row, None)
        if appends is None:
            return
        request = self._rows.request_at(row)
        plan.appends.append(appends)
        plan.announce(request, row)

    def _prefill(self, plan: StepPlan) -> bool:
        """Continue the batch's prompts; False once all of them are computed."""
        rows = self._rows
        left = rows.num_prompt_tokens - rows.num_computed_tokens
        unfinished = np.flatnonzero(rows.is_running & (left > 0)).tolist()
        for row in unfinished:
            if plan.token_budget <= 0:
                break
            self._announce(row, plan)
            prompt, padded = int(rows.num_prompt_tokens[row]), self._batch.longest_prompt
            done = int(rows.num_computed_tokens[row])
            count = min(int(left[row]), max(1, plan.token_budget * prompt // padded))
            self._composer.add(plan, int_array([row]), int_array([count]))
            padding_now = _share(padded - prompt, prompt, done, count)
            plan.num_padding_tokens += padding_now
            self._unpaid_pairs += _share((padded**2 - prompt**2) // 2, prompt, done, count)
            plan.token_budget -= padding_now
        return bool(unfinished)

    def _decode(self, plan: StepPlan) -> None:
        """Give every member its next token; those that have ended are computed all the same."""
        rows = int_array(np.flatnonzero(self._rows.lacking() == 1))
        if len(rows) == 0:
            return
        furthest_back = np.argsort(self._rows.num_tokens[rows], kind="stable")
        rows = rows[furthest_back][: plan.token_budget]
        self._composer.add(plan, rows, np.ones_like(rows))
        num_ended = max(0, min(self._batch.num_members, self._budget) - len(rows))
        prompts = self._rows.num_prompt_tokens[rows]
        padded = self._batch.longest_prompt
        num_outputs = int((self._rows.num_tokens[rows] - prompts).max())
        plan.num_padding_tokens += num_ended
        self._unpaid_pairs += int((padded - prompts).sum()) + num_ended * (padded + num_outputs)

    def _pay_pairs(self, plan: StepPlan) -> None:
        """Let the step's padding attend to what is due, each token to no more than a sequence can hold."""
        most = plan.num_padding_tokens * self._limits.max_sequence_tokens
        plan.num_padding_pairs = min(self._unpaid_pairs, most)
        self._unpaid_pairs -= plan.num_padding_pairs


def _share(whole: int, prompt: int, done: int, count: int) -> int:
    """Return the part of `whole` that belongs to a piece of a prompt; the pieces' parts add up to it."""
    return (done + count) * whole // prompt - done * whole // prompt
