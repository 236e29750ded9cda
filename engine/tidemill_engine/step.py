"""The one value that crosses from the scheduler to the device side each step, and the one that comes back.

Knows shapes and dtypes. Holds no request objects, no tensors and no policy; everything in it can be
serialised, so that one scheduler can drive several ranks.

Steps are carried out in the order of their ids. Within one: first `swap_out` (cache -> CPU pool), then
`swap_in` (CPU pool -> cache), then `block_copies` (within the cache), each list in its own order, then the
computing, which sees what was copied. So a block that is swapped out may be written by the same step, a
block that is copied from may not be the target of a swap in the same step, and a place in the CPU pool that
is swapped in from is not swapped out to before the next step. Copies are done when computing begins: a step
that is repeated because its computing failed does not copy again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tidemill_engine.messages import SamplingParams, TokenLogprobs

IntArray = npt.NDArray[np.int32]
LongArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]


def int_array(values: object = ()) -> IntArray:
    """Return the values as int32, the dtype of every array of the step contract."""
    return np.asarray(values, dtype=np.int32)


def no_pairs() -> IntArray:
    """Return an empty list of (from, to) block pairs: `[0, 2]`."""
    return np.empty((0, 2), dtype=np.int32)


@dataclass(frozen=True, kw_only=True, slots=True)
class NewRow:
    """A request that takes a row: all its tokens so far, which after a preemption include outputs."""

    row: int
    token_ids: IntArray
    num_prompt_tokens: int
    sampling: SamplingParams
    seed: int
    sibling: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockAppends:
    """Blocks put into rows' block tables, mostly at their ends: three arrays of one length.

    A position that is filled already gets another block (after a compaction).
    """

    rows: IntArray = field(default_factory=int_array)
    positions: IntArray = field(default_factory=int_array)
    block_ids: IntArray = field(default_factory=int_array)


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerOutput:
    """What one step computes. The first five arrays are `[num_rows]`, in the order of the flat batch.

    A row computes positions `start_pos .. start_pos + num_scheduled_tokens`. `logit_rows` are indices into
    the flat tokens of the step, ascending; the runner samples one token for each. `mask_rows` are the rows
    that a grammar constrains. Copies are pairs (from, to) `[num_pairs, 2]`. `num_padding_tokens` are
    computed for nobody, as a padded batch does.
    """

    step_id: int
    rows: IntArray
    num_scheduled_tokens: IntArray
    num_draft_tokens: IntArray
    start_pos: IntArray
    adapter_slot: IntArray
    logit_rows: IntArray
    new_rows: tuple[NewRow, ...] = ()
    block_appends: BlockAppends = field(default_factory=BlockAppends)
    swap_out: IntArray = field(default_factory=no_pairs)
    swap_in: IntArray = field(default_factory=no_pairs)
    block_copies: IntArray = field(default_factory=no_pairs)
    mask_rows: IntArray = field(default_factory=int_array)
    num_padding_tokens: int = 0
    num_padding_pairs: int = 0
    """Pairs of a token and one before it whose attention is computed for nobody, as in a padded batch."""

    @property
    def num_tokens(self) -> int:
        """Return how many tokens the step computes."""
        return int(self.num_scheduled_tokens.sum())


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenMasks:
    """Allowed tokens of the rows in `mask_rows`: `bits` is `[num_rows, ceil(vocab / 32)]` int32."""

    rows: IntArray
    bits: IntArray


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFailure:
    """A row that could not be computed; its request ends, the others go on."""

    row: int
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """The tokens of one step: `rows [n]`, `token_ids [n, k]`, of which the first `num_accepted [n]` count.

    `rows` are those that asked for logits, without the failed ones. `logprobs` holds those rows that asked
    for them.
    """

    step_id: int
    rows: IntArray
    token_ids: IntArray
    num_accepted: IntArray
    failures: tuple[RowFailure, ...] = ()
    num_copied: int = 0
    """Blocks whose copies, of this step or of earlier ones, have ended since the result before."""
    copy_seconds: float = 0.0
    """What those copies took."""
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
