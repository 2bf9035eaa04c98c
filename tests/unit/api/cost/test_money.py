"""Money is exact: what is written is read again, and what is added up loses nothing."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline_api.money import MILLIONTHS, amount, cost, exact_text, millionths, money_text


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2.50", 2_500_000),
        ("0", 0),
        ("0.000001", 1),
        ("999999.999999", 10**12 - 1),
        ("3", 3 * 10**6),
    ],
)
def test_a_decimal_is_millionths(text: str, amount: int) -> None:
    assert millionths(text) == amount


@pytest.mark.parametrize("text", ["", "-1", "1e3", ".5", "2,50", "1.0000001", "1234567", "2.5 "])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid price"):
        millionths(text)


@given(st.integers(0, 10**12 - 1))
def test_a_price_that_is_written_is_read_again(amount: int) -> None:
    assert millionths(exact_text(amount)) == amount


def test_gpus_that_are_held_for_a_time_cost_their_price() -> None:
    assert cost(gpu_seconds=8 * 5400, price=2_500_000) == 30 * MILLIONTHS


@given(st.integers(0, 10**9), st.integers(0, 10**12))
def test_a_cost_is_off_by_half_a_millionth_at_most(gpu_seconds: int, price: int) -> None:
    exact = Fraction(gpu_seconds * price, 3600)
    assert abs(cost(gpu_seconds=gpu_seconds, price=price) - exact) <= Fraction(1, 2)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (33_333_333, "33.33"),
        (33_335_000, "33.34"),
        (99_999_999, "100.00"),
        (3_500, "0.0035"),
        (-33_335_000, "-33.34"),
        (0, "0.00"),
    ],
)
def test_people_read_two_places_and_never_nothing(amount: int, text: str) -> None:
    assert money_text(amount) == text


def test_an_amount_may_be_larger_than_any_price() -> None:
    assert amount("999999999999.000001") == 999_999_999_999_000_001
    for wrong in ("", "-1", "1e6", "1.", ".5", "1.0000001", "1234567890123"):
        with pytest.raises(ValueError, match="invalid amount"):
            amount(wrong)


def test_parts_of_gpus_cost_their_share_rounded_once() -> None:
    two_of_seven = Fraction(2 * 3600, 7)
    assert cost(gpu_seconds=two_of_seven, price=4_000_000) == 1_142_857
    assert cost(gpu_seconds=7 * two_of_seven, price=4_000_000) == 8 * MILLIONTHS
    assert cost(gpu_seconds=Fraction(1, 2), price=3600) == 1, "a half is rounded up"
