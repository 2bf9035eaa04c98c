"""Large numbers are words, not exponents."""

from __future__ import annotations

import pytest

from drumline_planner.words import large


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (1e12, "1 trillion"),
        (15.6e12, "15.6 trillion"),
        (9.996e11, "1 trillion"),
        (2.5e9, "2.5 billion"),
        (300_000, "300000"),
        (4e15, "4000 trillion"),
    ],
)
def test_large_numbers_have_names(number: float, says: str) -> None:
    assert large(number) == says
