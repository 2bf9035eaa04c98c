"""Money as whole millionths of the installation's currency, exactly; never a float.

All prices of an installation are in one currency, which has no name here: what is added up is of
one kind. A price is of one GPU for an hour. What something costs is rounded once, at the end:

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
"""Decimal, as Karpenter writes prices: up to a million, to the sixth place."""
_PRICE: Final = re.compile(PRICE_PATTERN)
_AMOUNT: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
_PLACES: Final = 2


def millionths(text: str) -> int:
    """A decimal as millionths: `millionths("2.5") == 2_500_000`.

    Raises:
        ValueError: it is none, or has more than six places.
    """
    if _PRICE.fullmatch(text) is None:
        raise ValueError(f"{text[:32]!r} is no price; write a decimal such as 2.50")
    whole, _, places = text.partition(".")
    return int(whole) * MILLIONTHS + int(places.ljust(6, "0"))


def amount(text: str) -> int:
    """An amount as millionths, of any size: `amount("20000.5") == 20_000_500_000`.

    Raises:
        ValueError: it is no decimal, or has more than six places.
    """
    if _AMOUNT.fullmatch(text) is None:
        raise ValueError(f"{text[:32]!r} is no amount; write a decimal such as 20000.50")
    whole, _, places = text.partition(".")
    return int(whole) * MILLIONTHS + int(places.ljust(6, "0"))


def cost(*, gpu_seconds: int | Fraction, price: int) -> int:
    """What so many GPU-seconds cost at this price, to the nearest millionth, a half up.

    A part of a GPU costs its share of it: two of seven parts for an hour at 4.00 are two sevenths
    of 4.00, 1_142_857 millionths, rounded when all of them are added up.

    Args:
        gpu_seconds: GPUs times seconds.
        price: of a GPU for an hour.
    """
    return floor(Fraction(gpu_seconds) * price / HOUR_SECONDS + Fraction(1, 2))


def exact_text(amount: int) -> str:
    """All of it, with at least two places: `2.50`, `0.0035`. `millionths` reads it."""
    whole, rest = divmod(abs(amount), MILLIONTHS)
    places = f"{rest:06d}".rstrip("0").ljust(_PLACES, "0")
    return f"{'-' if amount < 0 else ''}{whole}.{places}"


def money_text(amount: int) -> str:
    """To the nearest hundredth, for people: `33.33`; all of what would round to nothing."""
    hundredth = MILLIONTHS // 10**_PLACES
    rounded = (2 * abs(amount) + hundredth) // (2 * hundredth) * hundredth
    if not rounded:
        return exact_text(amount)
    return exact_text(-rounded if amount < 0 else rounded)
