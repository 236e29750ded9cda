"""How quantities are read; durations and portions are in test_spec.py."""

from __future__ import annotations

import pytest

from tidemill_operator.errors import InvalidSpec
from tidemill_operator.fields import parse_quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("20Gi", 20 << 30),
        ("1.5Gi", 3 << 29),
        (1024, 1024),
        ("2k", 2000),
        ("100m", 1),
        ("0", 0),
        ("1Ei", 1 << 60),
    ],
)
def test_reads_quantities(text: str | int, amount: int) -> None:
    assert parse_quantity("spec.x", text) == amount


@pytest.mark.parametrize("text", ["", "Gi", "-1Gi", "1gb", "1e3", None, 1.5])
def test_refuses_what_is_not_a_quantity_and_names_the_field(text: object) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.x: .*not a quantity"):
        parse_quantity("spec.x", text)
