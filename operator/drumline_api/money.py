"""Compute with money as whole millionths of the installation's currency, exactly. Never a float.

All prices of an installation use one unnamed currency, so amounts can be added. A price is for one
GPU for one hour. A cost is rounded once, at the end:

    price 2.50 -> 2_500_000;  8 GPUs for 90 minutes: 8 x 5400 s x 2_500_000 / 3600 = 30_000_000
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import floor
from typing import Final

MILLIONTHS: Final = 10**6
HOUR_SECONDS: Final = 3600
PRICE_PATTERN: Final = r"^[0-9]{1,6}(\.[0-9]{1,6})?$"
"""Decimal as Karpenter writes prices: up to a million, with up to six places."""
_PRICE: Final = re.compile(PRICE_PATTERN)
_AMOUNT: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
_PLACES: Final = 2


def millionths(text: str) -> int:
    """Return a decimal as millionths: `millionths("2.5") == 2_500_000`.

    Raises:
        ValueError: `text` is not a decimal, or has more than six places.
    """
    if _PRICE.fullmatch(text) is None:
        raise ValueError(f"invalid price {text[:32]!r}: want a decimal such as 2.50")
    whole, _, places = text.partition(".")
    return int(whole) * MILLIONTHS + int(places.ljust(6, "0"))


def amount(text: str) -> int:
    """Return an amount of any size as millionths: `amount("20000.5") == 20_000_500_000`.

    Raises:
        ValueError: `text` is not a decimal, or has more than six places.
    """
    if _AMOUNT.fullmatch(text) is None:
        raise ValueError(f"invalid amount {text[:32]!r}: want a decimal such as 20000.50")
    whole, _, places = text.partition(".")
    return int(whole) * MILLIONTHS + int(places.ljust(6, "0"))


def cost(*, gpu_seconds: int | Fraction, price: int) -> int:
    """Return the cost of GPU-seconds at a price, rounded half up to the nearest millionth.

    A GPU partition costs its share. Two of seven parts for an hour at 4.00 cost two sevenths of
    4.00, 1_142_857 millionths. The sum is rounded, not each part.

    Args:
        gpu_seconds: GPUs times seconds.
        price: price of one GPU for one hour, in millionths.
    """
    return floor(Fraction(gpu_seconds) * price / HOUR_SECONDS + Fraction(1, 2))


def exact_text(amount: int) -> str:
    """Return the exact amount, with at least two places: `2.50`, `0.0035`.

    `millionths` reads it.
    """
    whole, rest = divmod(abs(amount), MILLIONTHS)
    places = f"{rest:06d}".rstrip("0").ljust(_PLACES, "0")
    return f"{'-' if amount < 0 else ''}{whole}.{places}"


def money_text(amount: int) -> str:
    """Return the amount rounded to hundredths for people: `33.33`.

    Amounts that would round to zero are shown exactly.
    """
    hundredth = MILLIONTHS // 10**_PLACES
    rounded = (2 * abs(amount) + hundredth) // (2 * hundredth) * hundredth
    if not rounded:
        return exact_text(amount)
    return exact_text(-rounded if amount < 0 else rounded)
