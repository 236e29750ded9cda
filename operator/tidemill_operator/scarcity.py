"""A rollout for which the cluster has no room beside the old replicas: the device that lacks, and what fits.

Pure. Knows the scheduler's words, and how the finding is kept in an annotation so that a rollout ends as it
began. Refuses to know nodes: the operator may not read them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidemill_operator.observed import PodView

# A resource with a domain in its name is a device; processor and memory have none.
_DEVICE_LACKING: Final = re.compile(r"Insufficient ([a-z0-9.-]+/[A-Za-z0-9._-]*[A-Za-z0-9])")
_WRITTEN: Final = re.compile(r"^([a-z0-9.-]+/[A-Za-z0-9._-]+)=([0-9]{1,5})$")


@dataclass(frozen=True, kw_only=True)
class Scarcity:
    """The device of which no node has one free, and how many replicas have a place."""

    device: str
    num_placed: int

    def as_written(self) -> str:
        """Give the annotation's text."""
        return f"{self.device}={self.num_placed}"


def read_scarcity(text: str) -> Scarcity | None:
    """Read the annotation's text; None when there is none, or a person wrote something else."""
    found = _WRITTEN.match(text)
    return None if found is None else Scarcity(device=found.group(1), num_placed=int(found.group(2)))


def find_scarcity(updated: Sequence[PodView], everything: Sequence[PodView]) -> Scarcity | None:
    """Find the device that pods of a new revision wait for, beside all pods that have a place."""
    for pod in sorted(updated, key=lambda pod: pod.name):
        found = None if pod.is_scheduled else _DEVICE_LACKING.search(pod.unscheduled_message)
        if found is not None:
            num_placed = sum(placed.is_scheduled for placed in everything)
            return Scarcity(device=found.group(1), num_placed=max(1, num_placed))
    return None
