"""What the autoscaler tells the plan about one service.

Pure. Knows the form in which a decision arrives. Refuses to know how it was made, and writes no replicas:
`plan.py` alone does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill_operator.situation import Condition


@dataclass(frozen=True, kw_only=True)
class ScalingView:
    """A decision, and what status says of it.

    `desired` is None while there is no decision, which means hold, never zero. `status` becomes
    `status.scaling` as it is. `conditions` take the place of those of the same type. `activation_failure`
    says why the last attempt to wake the service from zero came to nothing.
    """

    desired: int | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    activation_failure: str = ""
    cold_start_seconds: float | None = None
