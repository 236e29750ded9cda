"""What every runner on a CPU does around the model: copies, tables of rows, sampling, results.

Knows steps and rows. Does not know how logits are computed: that is the subclass.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidemill_engine.batch import Batch, RowTables, build_batch, copy_in_order
from tidemill_engine.padding import PaddingRows, num_rows_with_padding
from tidemill_engine.runner.sampler import DrawAll, Floats, RowSampling, Sampled, is_plain, sample
from tidemill_engine.step import BoolArray, IntArray, NewRow, RowFailure, StepResult, int_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemill_engine.messages import TokenLogprobs
    from tidemill_engine.runner.base import RunnerInfo
    from tidemill_engine.step import SchedulerOutput, TokenMasks


@dataclass(frozen=True, kw_only=True)
class Computed:
    """What a step computed for each row that asked: the best token, or all logits `[num_rows, vocab_size]`.

    `best` and `is_valid` (its logits are numbers) may be left out where there are logits.
    """

    logits: Floats | None = None
    best: IntArray | None = None
    is_valid: BoolArray | None = None


@dataclass(frozen=True, kw_only=True)
class BlockCopies:
    """How blocks are copied: out to the swap pool, in from it, and within the cache."""

    swap_out: Callable[[IntArray, IntArray], None]
    swap_in: Callable[[IntArray, IntArray], None]
    within: Callable[[IntArray, IntArray], None]


@dataclass(frozen=True, kw_only=True)
class LaunchedStep:
    """A step between `launch` and `sample`."""

    step_id: int
    batch: Batch
    computed: Computed
    num_copied: int
    copy_seconds: float


class CpuRunner(ABC):
    """Runs a model's steps one after another."""

    draw_all: DrawAll | None = None

    def __init__(self, info: RunnerInfo, copies: BlockCopies, *, num_rows: int) -> None:
        self._info = info
        self._copies = copies
        self._tables = RowTables(
            num_rows=num_rows_with_padding(num_rows),
            max_tokens_per_row=info.max_model_len,
            block_size=info.block_size,
        )
        # The spare block is the one behind those that the scheduler knows.
        self._padding = PaddingRows(self._tables, num_request_rows=num_rows, spare_block=info.num_blocks)
        self._rows: list[NewRow | None] = [None] * num_rows
        self._is_plain = np.zeros(num_rows, dtype=np.bool_)
        self._launched: deque[LaunchedStep] = deque()

    @property
    def info(self) -> RunnerInfo:
        """Return what was loaded."""
        return self._info

    @abstractmethod
    def _compute(self, batch: Batch, *, wants_logits: bool) -> Computed:
        """Compute a step; without `wants_logits` the best token of each row is enough."""

    def launch(self, output: SchedulerOutput) -> None:
        """Do a step's copies and compute it up to its logits."""
        num_copied, copy_seconds = self._copy(output)
        self._tables.apply(output)
        for new_row in output.new_rows:
            self._rows[new_row.row] = new_row
            self._is_plain[new_row.row] = is_plain(new_row.sampling)
        batch = build_batch(output, self._tables)
        batch = self._padding.joined(batch, output.num_padding_tokens, output.num_padding_pairs)
        wants_logits = len(output.mask_rows) > 0 or not self._is_plain[batch.logit_rows].all()
        computed = self._compute(batch, wants_logits=bool(wants_logits))
        self._launched.append(
            LaunchedStep(
                step_id=output.step_id,
                batch=batch,
                computed=computed,
                num_copied=num_copied,
                copy_seconds=copy_seconds,
            )
        )

    def sample(self, masks: TokenMasks | None) -> StepResult:
        """Choose the tokens of the oldest launched step."""
        step = self._launched.popleft()
        if masks is not None and len(masks.rows):
            raise NotImplementedError("grammar masks are not applied yet")
        best, is_valid = step.computed.best, step.computed.is_valid
        if step.computed.logits is None and best is not None and is_valid is not None and is_valid.all():
            return self._result_of_best(step, int_array(best))
        return self._result(step, self._chosen(step))

    def _copy(self, output: SchedulerOutput) -> tuple[int, float]:
        """Do a step's copies in their order and return how many blocks were swapped, and the seconds."""
        started = time.monotonic()
        copy_in_order(output.swap_out, self._copies.swap_out)
        copy_in_order(output.swap_in, self._copies.swap_in)
        seconds = time.monotonic() - started
        copy_in_order(output.block_copies, self._copies.within)
        return len(output.swap_out) + len(output.swap_in), seconds

    def _chosen(self, step: LaunchedStep) -> Sampled:
        """Take the best tokens where they are all that is asked for, and sample the others."""
        rows, computed = step.batch.logit_rows, step.computed
        best, is_valid = computed.best, computed.is_valid
        if best is None or is_valid is None:
            others = list(range(len(rows)))
        else:
            others = np.flatnonzero(~self._is_plain[rows] & is_valid).tolist()
        tokens = [0] * len(rows) if best is None else best.tolist()
        valid = [False] * len(rows) if is_valid is None else is_valid.tolist()
        logprobs: dict[int, TokenLogprobs] = {}
        if others and computed.logits is not None:
            lengths = step.batch.positions[step.batch.logit_tokens] + 1
            samplings = [self._sampling(int(rows[index]), int(lengths[index])) for index in others]
            sampled = sample(computed.logits, samplings, others, self.draw_all)
            for place, index in enumerate(others):
                tokens[index], valid[index] = sampled.token_ids[place], sampled.is_valid[place]
            logprobs = {others[place]: found for place, found in sampled.logprobs.items()}
        return Sampled(token_ids=tokens, is_valid=valid, logprobs=logprobs)

    def _sampling(self, row: int, length: int) -> RowSampling:
        """Return how the token after a row's first `length` tokens is chosen."""
        request = self._rows[row]
        if request is None:
            raise RuntimeError(f"row {row} computes tokens but was never started")
        end_token_ids: set[int] = set()
        if request.sampling.min_tokens > 0:
            end_token_ids.update(request.sampling.stop_token_ids)
            if not request.sampling.ignore_eos:
                end_token_ids |= self._info.eos_token_ids
        return RowSampling(
            sampling=request.sampling,
            token_ids=self._tables.token_ids[row, :length],
            num_prompt_tokens=request.num_prompt_tokens,
            seed=request.seed,
            sibling=request.sibling,
            end_token_ids=tuple(token for token in sorted(end_token_ids) if token < self._info.vocab_size),
        )

    def _result_of_best(self, step: LaunchedStep, best: IntArray) -> StepResult:
        """Return the result of a step whose rows all take their best token, which is the rule."""
        rows = step.batch.logit_rows
        self._tables.append_tokens(rows, best)
        return StepResult(
            step_id=step.step_id,
            num_copied=step.num_copied,
            copy_seconds=step.copy_seconds,
            rows=rows,
            token_ids=best.reshape(-1, 1),
            num_accepted=np.ones(len(rows), dtype=np.int32),
        )

    def _result(self, step: LaunchedStep, sampled: Sampled) -> StepResult:
        """Put the tokens into the tables and into the step's result; rows without numbers fail alone."""
        rows = step.batch.logit_rows
        is_valid = np.asarray(sampled.is_valid, dtype=np.bool_)
        tokens = int_array(sampled.token_ids)
        self._tables.append_tokens(rows[is_valid], tokens[is_valid])
        failures = tuple(
            RowFailure(row=int(row), message="the model's output is not a number (NaN)")
            for row in rows[~is_valid]
        )
        logprobs: dict[int, tuple[TokenLogprobs, ...]] = {
            int(rows[index]): (found,) for index, found in sampled.logprobs.items()
        }
        return StepResult(
            step_id=step.step_id,
            num_copied=step.num_copied,
            copy_seconds=step.copy_seconds,
            rows=rows[is_valid],
            token_ids=tokens[is_valid].reshape(-1, 1),
            num_accepted=np.ones(int(is_valid.sum()), dtype=np.int32),
            failures=failures,
            logprobs=logprobs,
        )
