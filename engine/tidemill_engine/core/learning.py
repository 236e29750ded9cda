"""What the core learns while it serves, and what the scheduler is told of it: step times, lengths, costs.

Knows measured seconds that it is given. Does not measure and does not choose steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill_engine.scheduler.chunking import FittedChunks
from tidemill_engine.scheduler.predictor import WorkPredictor
from tidemill_engine.scheduler.seams import Seams
from tidemill_engine.scheduler.step_model import StepModel, features_of

if TYPE_CHECKING:
    from tidemill_engine.request import Request
    from tidemill_engine.scheduler.base import ChunkPolicy
    from tidemill_engine.scheduler.rows import RowTable
    from tidemill_engine.step import SchedulerOutput

_NEW_SHARE = 0.2


class MeasuredCosts:
    """What a preempted request costs to bring back: blocks by measured copies, tokens by the step model."""

    def __init__(self, model: StepModel, max_chunk_tokens: int) -> None:
        self._model = model
        self._max_chunk = max_chunk_tokens
        self._seconds_per_block: float | None = None

    def observe(self, num_blocks: int, seconds: float) -> None:
        """Learn from copies of blocks, wherever to: on a CPU all of them are copies in its memory."""
        per_block = seconds / num_blocks
        known = self._seconds_per_block
        self._seconds_per_block = per_block if known is None else known + _NEW_SHARE * (per_block - known)

    def swap_seconds(self, num_blocks: int) -> float:
        """Return the time to copy so many blocks out and in again; nothing before the first measurement."""
        return 2 * num_blocks * (self._seconds_per_block or 0.0)

    def recompute_seconds(self, num_tokens: int) -> float:
        """Return the time to compute so many tokens again; nothing while no step is known."""
        return self._model.predict_prefill(num_tokens, self._max_chunk) if self._model.is_fitted else 0.0


class Learning:
    """Everything that is learnt in one core."""

    def __init__(self, max_chunk_tokens: int) -> None:
        self.model = StepModel()
        self.costs = MeasuredCosts(self.model, max_chunk_tokens)
        self._work = WorkPredictor(self.model, max_chunk_tokens)
        self._max_chunk_tokens = max_chunk_tokens
        self._chunks: FittedChunks | None = None

    def seams(self) -> Seams:
        """Return what a scheduler is given."""
        return Seams(
            estimates=self._work.estimates(),
            make_chunks=self._make_chunks,
            costs=self.costs,
            on_end=self._note_end,
        )

    def observe(
        self, output: SchedulerOutput, seconds: float, num_copied: int = 0, copy_seconds: float = 0.0
    ) -> None:
        """Learn from one step, and from copies that have ended since the one before.

        A GPU copies beside its computing: what is left of a step beyond its copies may be next to nothing.
        """
        if num_copied:
            self.costs.observe(num_copied, copy_seconds)
        if len(output.swap_out) + len(output.swap_in) + len(output.block_copies):
            return
        features = features_of(output)
        self.model.observe(features, seconds)
        if self._chunks is not None:
            self._chunks.note_step(features, seconds)

    @property
    def effective_batch_tokens(self) -> int:
        """Return the tokens that the latest step with decodes could have had, by the inter-token SLOs."""
        return self._chunks.effective_tokens if self._chunks is not None else 0

    def _make_chunks(self, rows: RowTable) -> ChunkPolicy:
        self._chunks = FittedChunks(
            self.model, lambda: rows.itl_slo_seconds, max_chunk_tokens=self._max_chunk_tokens
        )
        return self._chunks

    def _note_end(self, request: Request) -> None:
        self._work.lengths.observe(request, request.num_tokens - request.num_prompt_tokens)
