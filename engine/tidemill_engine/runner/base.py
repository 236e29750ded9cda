"""The contract of a runner.

`launch` starts a step, `sample` ends the oldest launched one; grammar masks are built between the two. A
runner keeps its own tables of tokens and blocks per row and is told additions only. A row that can't be
computed is a `RowFailure` in the result, never an exception; an exception means that the whole step's
computing is void and may be repeated, but its copies are done: they are not repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidemill_engine.errors import EngineError

if TYPE_CHECKING:
    from tidemill_engine.step import SchedulerOutput, StepResult, TokenMasks

ReportProgress = Callable[[int, int], None]
"""Called with (bytes read, bytes in all) while weights are loaded."""


class RunnerLost(EngineError):  # noqa: N818 - named as the others are
    """No further step can be computed, not even row by row: the core must end."""


@dataclass(frozen=True, kw_only=True)
class RunnerInfo:
    """What the loaded model and its cache turned out to be."""

    vocab_size: int
    max_model_len: int
    num_blocks: int
    block_size: int
    dtype: str
    eos_token_ids: frozenset[int]
    num_swap_blocks: int = 0
    """Places of the CPU pool for swapped blocks."""
    depth: int = 1
    """Steps that may be launched before the oldest of them is sampled."""
    compiles_late: bool = False
    """Whether kernels are compiled when a step first needs them, so that first steps say nothing of time."""


class ModelRunner(Protocol):
    """What the core's loop needs of a model."""

    @property
    def info(self) -> RunnerInfo:
        """Return what was loaded."""

    def launch(self, output: SchedulerOutput) -> None:
        """Start computing a step."""

    def sample(self, masks: TokenMasks | None) -> StepResult:
        """Choose the tokens of the oldest launched step."""
