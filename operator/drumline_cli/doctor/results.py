"""Define the results of a check: passed, warned, failed, or undecided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """All is well, with the figures that show it."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Jobs run, but something will surprise somebody."""

    message: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFailed:
    """Some jobs will not run, or not as they should."""

    message: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """The check has no result: a right or a prerequisite is missing."""

    message: str
    fix: str


Result = Passed | Warned | CheckFailed | Undecided


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    check: str
    """The check's name: `Clocks`, `Queues`."""
    result: Result


def some(names: Iterable[str]) -> str:
    """Return `a, b and 7 more`, in order."""
    ordered = sorted(names)
    if len(ordered) <= _SHOWN:
        return ", ".join(ordered)
    return f"{', '.join(ordered[:_SHOWN])} and {len(ordered) - _SHOWN} more"
