"""Kubernetes quantities (`500m`, `1.5Gi`, `2e3`) as exact integers.

The grammar is `<sign><number><suffix>`: decimal suffixes from n to E, binary ones from Ki to Ei, or
a decimal exponent. As the API server does, amounts finer than a nano are rounded away from zero,
and larger ones than an int64 holds are cut to it. Reading an amount in thousandths or in whole
units rounds away from zero too: a pod never asks for less than it wrote.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

CPU: Final = "cpu"
_NANO: Final = 10**9
_MAX: Final = 2**63 - 1
_MAX_CHARS: Final = 64
_MAX_EXPONENT: Final = 200  # with 64 digits at most, everything beyond is cut or rounded alike
_GRAMMAR: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+)|(?P<suffix>[numkMGTPE]|[KMGTPE]i)?)"
)
_DECIMAL_EXPONENTS: Final = {
    "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip
_BINARY_SHIFTS: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


@lru_cache(maxsize=4096)
def thousandths(text: str) -> int:
    """Return the amount in thousandths, as CPU is counted: `thousandths("500m") == 500`.

    Raises:
        ValueError: the text is not a valid quantity.
    """
    return _rounded(_nanos(text), _NANO // 1000)


@lru_cache(maxsize=4096)
def units(text: str) -> int:
    """Return the amount in whole units, for bytes and devices: `units("1Ki") == 1024`.

    Raises:
        ValueError: the text is not a valid quantity.
    """
    return _rounded(_nanos(text), _NANO)


def amount(resource: str, text: str) -> int:
    """Return the amount as kube-scheduler counts the resource: CPU in thousandths, else units.

    Raises:
        ValueError: the text is not a valid quantity.
    """
    return thousandths(text) if resource == CPU else units(text)


def is_quantity(text: str) -> bool:
    """Return whether the text is a valid quantity."""
    try:
        _nanos(text)
    except ValueError:
        return False
    return True


def _nanos(text: str) -> int:
    # The length is checked first, because `int` of long texts takes quadratic time.
    match = _GRAMMAR.fullmatch(text) if len(text) <= _MAX_CHARS else None
    if match is None or not (match["whole"] or match["fraction"]):
        raise ValueError(f"{text[:_MAX_CHARS]!r} is not a valid quantity")
    fraction = match["fraction"] or ""
    mantissa = int(match["whole"] + fraction)
    suffix = match["suffix"] or ""
    # Binary suffixes are exact shifts. They cannot be combined with an exponent.
    if suffix in _BINARY_SHIFTS:
        mantissa <<= _BINARY_SHIFTS[suffix]
        exponent = 0
    else:
        exponent = _DECIMAL_EXPONENTS[suffix] + int(match["exponent"] or 0)
    # The scale is in nanos, so the fraction's digits count against it.
    scale = max(-_MAX_EXPONENT, min(_MAX_EXPONENT, exponent)) - len(fraction) + 9
    nanos = mantissa * 10**scale if scale >= 0 else _rounded(mantissa, 10**-scale)
    # The server caps at int64 too, so the scheduler and Drumline agree on absurd amounts.
    nanos = min(nanos, _MAX * _NANO)
    return -nanos if match["sign"] == "-" else nanos


def _rounded(dividend: int, divisor: int) -> int:
    """Integer division away from zero."""
    # Floor division of the negated dividend rounds up. Python floors toward minus infinity.
    magnitude = -(-abs(dividend) // divisor)
    return magnitude if dividend >= 0 else -magnitude
