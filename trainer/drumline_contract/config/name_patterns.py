"""Patterns of names, all of them matched at once. They are a stranger's, so time is bounded.

A pattern is a row of tokens: a character, `?`, a set such as `[0-4]`, or `*`. Which tokens a text
may have come to is a set of bits, over all patterns together, and a character moves all of them at
once: how long a name takes depends on its length and not on what the patterns are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

_TOKENS: Final = re.compile(r"\*+|\[!?+\]?+[^\]]*\]|.", re.DOTALL)


class NamePatterns:
    """Patterns with the semantics of `fnmatchcase`, matched together."""

    def __init__(self, patterns: Iterable[str]) -> None:
        """Give each token of each pattern, and each end of a pattern, one bit."""
        self._ends: dict[str, int] = {}
        self._begins = self._stars = 0
        places: dict[str, int] = {}
        bit = 1
        for pattern in patterns:
            self._begins |= bit
            for token in _TOKENS.findall(pattern):
                if token.startswith("*"):
                    self._stars |= bit
                else:
                    places[token] = places.get(token, 0) | bit
                bit <<= 1
            self._ends[pattern] = bit
            bit <<= 1
        self._places = places
        self._any_end = sum(self._ends.values())
        self._taking = functools.cache(self._which_take)

    def matches(self, name: str) -> bool:
        """Return whether a pattern matches the whole name."""
        return bool(self.after(name) & self._any_end)

    def unused(self, names: Iterable[str]) -> list[str]:
        """Return the patterns that match none of the names."""
        reached = 0
        for name in names:
            reached |= self.after(name)
        return [pattern for pattern, end in self._ends.items() if not reached & end]

    def after(self, start: str) -> int:
        """Return the states after reading the start of a name, as a bit set.

        A name matches if these states and `before` of its remaining characters intersect.
        """
        at = self._past_stars(self._begins)
        for character in start:
            at = self._past_stars((at & self._taking(character)) << 1 | at & self._stars)
        return at

    def before(self, rest: str) -> int:
        """Return the places in a pattern (as bits) from which it matches a name's last part."""
        at = self._any_end
        at |= at >> 1 & self._stars
        for character in reversed(rest):
            at = at >> 1 & self._taking(character) | at & self._stars
            at |= at >> 1 & self._stars
        return at

    def _past_stars(self, at: int) -> int:
        """Add the states behind each star, because a star may match nothing. Stars never adjoin."""
        return at | (at & self._stars) << 1

    def _which_take(self, character: str) -> int:
        return sum(bits for token, bits in self._places.items() if fnmatchcase(character, token))
