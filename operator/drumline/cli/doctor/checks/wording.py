"""How checks name several things."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_SHOWN: Final = 5


def some(names: Iterable[str]) -> str:
    """`a, b and 7 more`, in order."""
    ordered = sorted(names)
    if len(ordered) <= _SHOWN:
        return ", ".join(ordered)
    return f"{', '.join(ordered[:_SHOWN])} and {len(ordered) - _SHOWN} more"
