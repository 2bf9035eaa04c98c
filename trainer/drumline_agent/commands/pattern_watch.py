"""Detection of progress patterns that match none of a program's output; pure.

Such a pattern is not an error of the program, which trains without visible steps. So there is a
remark once there was time enough for a first step, until a line matches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SILENT_LINES: Final = 100
"""Lines without a step after which the log gets a line about it, once."""
LINES: Final = 2000
SECONDS: Final = 600.0
"""Seconds after the first line, or LINES lines, after which each pattern should have matched."""


class PatternWatch:
    """A watch over all processes of a pod and all its attempts."""

    def __init__(self, groups: Iterable[str]) -> None:
        """Expect the named groups of the template's patterns; without any, expect nothing."""
        self._missing = frozenset(groups)
        self._has_patterns = bool(self._missing)
        self._knows_steps = False
        self._lines = 0
        self._first_at: float | None = None
        self._last_at = 0.0

    def close(self) -> None:
        """Stop watching: the program reports steps through the client."""
        self._missing = frozenset[str]()
        self._knows_steps = True

    def shown(self) -> None:
        """Note that a line had a step."""
        self._knows_steps = True

    def hint(self) -> str:
        """Return what to print behind this line, usually nothing."""
        if self._knows_steps or self._lines != SILENT_LINES:
            return ""
        if self._has_patterns:
            remedy = "compare template.progress.patterns with these lines"
        else:
            remedy = (
                "print lines such as `step 12/200 loss 2.34`, or name your own format by"
                " template.progress or `drumline run --progress PATTERN`"
            )
        return f"drumline: none of {SILENT_LINES} printed lines has a step: {remedy}"

    def read(self, groups: Iterable[str]) -> None:
        """Note that a line has matched these groups of a pattern."""
        self._missing -= frozenset(groups)

    def printed(self, *, at: float) -> str:
        """Note a line that was printed at this time in seconds. Return the present remark or ""."""
        self._lines += 1
        self._first_at = at if self._first_at is None else self._first_at
        self._last_at = at
        return self.sentence()

    def sentence(self) -> str:
        """Return the present remark or ""."""
        if not self._missing or self._first_at is None:
            return ""
        seconds = self._last_at - self._first_at
        if self._lines < LINES and seconds < SECONDS:
            return ""
        names = " and ".join(sorted(self._missing))
        return (
            f"no line that the program printed has matched a pattern with {names}: compare "
            "template.progress.patterns with the log of the pod of the lowest index"
        )
