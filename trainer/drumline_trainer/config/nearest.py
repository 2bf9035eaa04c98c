"""The legal values on both sides of one that is not: what an error says after `use`."""

from __future__ import annotations

import math


def nearest_divisors(number: int, *, of: int) -> str:
    """`32 or 48` for 47 of 6144. O(sqrt(of))."""
    low = [each for each in range(1, math.isqrt(of) + 1) if of % each == 0]
    divisors = {*low, *(of // each for each in low)}
    below = max((each for each in divisors if each < number), default=None)
    above = min((each for each in divisors if each > number), default=None)
    return _either(below, above)


def nearest_multiples(number: int, *, of: int) -> str:
    """`16 or 24` for 20 of 8."""
    below = number // of * of
    return _either(below or None, below + of)


def _either(below: int | None, above: int | None) -> str:
    return " or ".join(str(each) for each in (below, above) if each is not None)
