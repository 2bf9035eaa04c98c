"""Quantities are read exactly as the API server reads them."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.kube.quantity import amount, thousandths, units

_FACTORS = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "P": Fraction(10**15), "E": Fraction(10**18), "Ki": Fraction(2**10), "Mi": Fraction(2**20),
    "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip
_INT64_MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "whole", "milli"),
    [
        ("0", 0, 0),
        ("8", 8, 8000),
        ("+8", 8, 8000),
        ("500m", 1, 500),
        ("1500m", 2, 1500),
        ("0.1", 1, 100),
        (".5", 1, 500),
        ("5.", 5, 5000),
        ("1u", 1, 1),
        ("1Ki", 1024, 1_024_000),
        ("1.5Gi", 1_610_612_736, 1_610_612_736_000),
        ("2e3", 2000, 2_000_000),
        ("2E3", 2000, 2_000_000),
        ("2E", 2 * 10**18, 2 * 10**21),
        ("5e-1", 1, 500),
        ("0.0000000001", 1, 1),
        ("-1500m", -2, -1500),
        ("99Ei", _INT64_MAX, _INT64_MAX * 1000),
        ("1e999999999", _INT64_MAX, _INT64_MAX * 1000),
        ("1e-999999999", 1, 1),
    ],
)
def test_known_amounts(text: str, whole: int, milli: int) -> None:
    assert (units(text), thousandths(text)) == (whole, milli)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1 Gi",
        "Gi",
        ".",
        "+",
        "1e",
        "1e3Ki",
        "1ki",
        "1mi",
        "0x10",
        "1_0",
        "1" * 65,
        "\u0661",
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid quantity"):
        units(text)


@given(
    mantissa=st.integers(min_value=0, max_value=10**15),
    decimals=st.integers(min_value=0, max_value=12),
    suffix=st.sampled_from(sorted(_FACTORS)),
)
def test_any_amount_equals_its_fraction(mantissa: int, decimals: int, suffix: str) -> None:
    digits = str(mantissa).rjust(decimals + 1, "0")
    text = f"{digits[: len(digits) - decimals]}.{digits[len(digits) - decimals :]}{suffix}"
    exact = Fraction(mantissa, 10**decimals) * _FACTORS[suffix]
    nanos = min(ceil(exact * 10**9), _INT64_MAX * 10**9)
    assert units(text) == ceil(Fraction(nanos, 10**9))
    assert thousandths(text) == ceil(Fraction(nanos, 10**6))


@given(mantissa=st.integers(min_value=0, max_value=10**6), exponent=st.integers(-9, 9))
def test_an_exponent_shifts_the_decimal_point(mantissa: int, exponent: int) -> None:
    exact = mantissa * Fraction(10) ** exponent
    assert units(f"{mantissa}e{exponent}") == ceil(exact)


def test_only_cpu_is_counted_in_thousandths() -> None:
    assert amount("cpu", "2") == 2000
    assert amount("memory", "2") == 2
    assert amount("nvidia.com/gpu", "8") == 8
