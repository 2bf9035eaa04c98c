"""The legal values on both sides of one that is not."""

from __future__ import annotations

import pytest

from drumline_contract.config.bounds import nearest_divisors, nearest_multiples


@pytest.mark.parametrize(
    ("number", "of", "says"),
    [(47, 6144, "32 or 48"), (64, 32, "32"), (5, 7, "1 or 7"), (5, 32, "4 or 8")],
)
def test_divisors_on_both_sides(number: int, of: int, says: str) -> None:
    assert nearest_divisors(number, of=of) == says


@pytest.mark.parametrize(("number", "of", "says"), [(20, 8, "16 or 24"), (3, 8, "8")])
def test_multiples_on_both_sides(number: int, of: int, says: str) -> None:
    assert nearest_multiples(number, of=of) == says
