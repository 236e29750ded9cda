"""What a plan may ask for besides applying manifests: deleting, telling, and changing one pod.

Pure values. Refuses to know why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

EVENT_NORMAL: Final = "Normal"
EVENT_WARNING: Final = "Warning"


@dataclass(frozen=True, kw_only=True)
class Delete:
    """An object to delete, exactly the one that was seen."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something to tell whoever describes the service."""

    type: str
    reason: str
    message: str


class EngineCall(Enum):
    """What is asked of a pod's engine."""

    NOTHING = auto()
    DRAIN = auto()
    TAKE_BACK = auto()


@dataclass(frozen=True, kw_only=True)
class PodChange:
    """One pod's new labels and annotations (None removes one), and what its engine is asked for.

    A drain is asked for after the labels are written, so that no gateway sends more; it is asked again in
    every run, so it may fail. A pod that is taken back gets its labels only when its engine has agreed.
    """

    pod: str
    uid: str
    ip: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    call: EngineCall = EngineCall.NOTHING
