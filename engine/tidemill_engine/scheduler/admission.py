"""Whether another request may join the running ones, by how full the KV cache is going to be.

Knows blocks and watermarks; does not know requests. `committed` counts the blocks that are held and those
that admitted prompts still need.

- `adaptive`: shut by a preemption or an allocation that failed; open again below the low watermark, or
  after 64 steps without another one.
- `strict`: a latch. Shut also once more than the high watermark is committed, by growth; open again below
  the low watermark and no sooner.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill_engine.config import AdmissionMode, Watermarks

logger = logging.getLogger(__name__)

REOPEN_AFTER_STEPS = 64


class AdmissionGate:
    """Open or shut; an open one admits what fits under the high watermark."""

    def __init__(self, watermarks: Watermarks, num_blocks: int, mode: AdmissionMode = "adaptive") -> None:
        self._is_strict = mode == "strict"
        self._high_blocks = int(watermarks.high * num_blocks)
        self._low_blocks = int(watermarks.low * num_blocks)
        self._critical_blocks = watermarks.critical * num_blocks
        self._closed_at_step: int | None = None

    @property
    def most_blocks(self) -> int:
        """Return up to how many committed blocks requests are admitted."""
        return self._high_blocks

    @property
    def is_open(self) -> bool:
        """Say whether anyone may be admitted beside those that run."""
        return self._closed_at_step is None

    def close(self, step_id: int, reason: str = "a request was preempted for want of blocks") -> None:
        """Note a preemption, or whatever else shows that too many were admitted."""
        if self.is_open:
            logger.info("admission closes at step %d: %s", step_id, reason)
        self._closed_at_step = step_id

    def refresh(self, step_id: int, committed_blocks: int) -> None:
        """Open or shut the gate if it is time."""
        if self._closed_at_step is None:
            if self._is_strict and committed_blocks > self._high_blocks:
                self.close(step_id, f"{committed_blocks} blocks are committed, over {self._high_blocks}")
            return
        if committed_blocks < self._low_blocks:
            logger.info("admission opens at step %d: %d blocks committed", step_id, committed_blocks)
        elif not self._is_strict and step_id - self._closed_at_step >= REOPEN_AFTER_STEPS:
            logger.info(
                "admission opens at step %d: %d steps without preemption", step_id, REOPEN_AFTER_STEPS
            )
        else:
            return
        self._closed_at_step = None

    def admits(self, committed_blocks: int, needed_blocks: int) -> bool:
        """Say whether a request that needs so many blocks may join."""
        return self.is_open and committed_blocks + needed_blocks <= self._high_blocks

    def is_critical(self, held_blocks: int) -> bool:
        """Say whether so little is free that prompts should pause for the sake of those that decode."""
        return held_blocks > self._critical_blocks
