"""How single values of an InferenceService are written: quantities and portions of replicas.

Pure. Knows their forms and refuses what has another, naming the field. Refuses to know which fields there
are.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from tidemill_operator.durations import parse_duration
from tidemill_operator.errors import InvalidSpec

Raw = Mapping[str, Any]

_PORTION: Final = re.compile(r"^(100|[1-9]?[0-9])%$")
_QUANTITY: Final = re.compile(r"^([0-9]{1,18}(?:\.[0-9]{1,9})?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")
_FACTORS: Final[Mapping[str, Decimal]] = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000) ** power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), start=1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}


@dataclass(frozen=True, kw_only=True)
class Portion:
    """A number of replicas, or a share of them in percent."""

    amount: int
    is_percent: bool = False

    def of(self, total: int, *, round_up: bool) -> int:
        """Give the number of replicas that this is of a total."""
        if not self.is_percent:
            return self.amount
        exact = self.amount * total
        return -(-exact // 100) if round_up else exact // 100

    def as_written(self) -> int | str:
        """Give the value in the API's int-or-string form."""
        return f"{self.amount}%" if self.is_percent else self.amount


ONE_REPLICA: Final = Portion(amount=1)
NO_REPLICA: Final = Portion(amount=0)


def whole_seconds(path: str, text: object) -> int:
    """Read a duration as seconds, rounded up."""
    return math.ceil(parse_duration(path, text))


def parse_quantity(path: str, value: object) -> int:
    """Read a quantity such as 20Gi as a whole number, rounded up."""
    match = _QUANTITY.match(str(value)) if isinstance(value, str | int) else None
    if match is None:
        raise InvalidSpec(path, f"{value!r} is not a quantity; write for example 20Gi")
    return math.ceil(Decimal(match[1]) * _FACTORS[match[2] or ""])


def parse_portion(path: str, value: object) -> Portion:
    """Read a number of replicas or a percentage of them."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Portion(amount=value)
    if isinstance(value, str) and _PORTION.match(value):
        return Portion(amount=int(value[:-1]), is_percent=True)
    raise InvalidSpec(path, f"{value!r} is neither a number nor a percentage such as 25%")
