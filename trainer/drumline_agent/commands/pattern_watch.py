"""Whether a template's patterns read anything of what its program prints; pure.

A pattern that matches nothing is no error of the program: it trains, and nobody sees its step. So
it is said once there was time enough for a first step, and no more once a line has matched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LINES: Final = 2000
SECONDS: Final = 600.0
"""After so many lines, or so long after the first one, something should have matched."""


class PatternWatch:
    """Of all processes of a pod, over its attempts."""

    def __init__(self, groups: Iterable[str]) -> None:
        """Args: the names of the groups in the template's patterns; none: nothing is expected."""
        self._missing = frozenset(groups)
        self._lines = 0
        self._first_at: float | None = None
        self._last_at = 0.0

    def close(self) -> None:
        """The program says its steps by the client: what it prints does not count."""
        self._missing = frozenset[str]()

    def read(self, groups: Iterable[str]) -> None:
        """A line has matched the pattern with these groups, of which it may have some only."""
        self._missing -= frozenset(groups)

    def printed(self, *, at: float) -> str:
        """A line was printed at this time in seconds; what there is to say, perhaps nothing."""
        self._lines += 1
        self._first_at = at if self._first_at is None else self._first_at
        self._last_at = at
        return self.sentence()

    def sentence(self) -> str:
        """What there is to say."""
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
