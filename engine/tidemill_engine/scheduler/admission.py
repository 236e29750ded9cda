"""Whether another request may join the running ones, by how full the KV cache is going to be.

Knows blocks and watermarks; does not know requests. `committed` counts the blocks that are held and those
that admitted prompts still need.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill_engine.config import Watermarks

logger = logging.getLogger(__name__)

REOPEN_AFTER_STEPS = 64


class AdmissionGate:
    """Open until a preemption; opens again below the low watermark or after 64 steps without another one."""

    def __init__(self, watermarks: Watermarks, num_blocks: int) -> None:
        self._high_blocks = int(watermarks.high * num_blocks)
        self._low_blocks = int(watermarks.low * num_blocks)
        self._critical_blocks = watermarks.critical * num_blocks
        self._closed_at_step: int | None = None

    @property
    def is_open(self) -> bool:
        """Say whether anyone may be admitted beside those that run."""
        return self._closed_at_step is None

    def close(self, step_id: int) -> None:
        """Note a preemption."""
        if self.is_open:
            logger.info("admission closes at step %d: a request was preempted for want of blocks", step_id)
        self._closed_at_step = step_id

    def refresh(self, step_id: int, committed_blocks: int) -> None:
        """Open the gate again if it is time."""
        if self._closed_at_step is None:
            return
        if committed_blocks < self._low_blocks:
            logger.info("admission opens at step %d: %d blocks committed", step_id, committed_blocks)
        elif step_id - self._closed_at_step >= REOPEN_AFTER_STEPS:
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
