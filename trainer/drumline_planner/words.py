"""Format large numbers for the planner's sentences."""

from __future__ import annotations

_NAMES = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def large(number: float) -> str:
    """Return `15 trillion`, `2.5 billion` or `300000`: three significant digits, no exponent."""
    for size, name in _NAMES:
        if number >= 0.9995 * size:
            share = number / size
            return f"{share:.3g} {name}" if share < 999.5 else f"{share:.0f} {name}"
    return f"{number:.0f}"
