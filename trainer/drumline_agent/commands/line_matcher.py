"""Looks for a user's pattern in a line: a machine that reads each character once; pure.

The threads of the machine stand at instructions of the program, in order of preference, at most
one at each: the one that was preferred. What it captured is what Python's `re` would capture.
(https://swtch.com/~rsc/regexp/regexp2.html, Pike's implementation.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from drumline_contract import LinePattern, PatternOp

MAX_WORK: Final = 10_000
"""Instructions for a line. A usual one of a log takes a few hundred."""
_Slots = tuple[int, ...]
_Thread = tuple[int, _Slots]
"""Place in the program, and begin and end of each group; -1: not reached yet."""


class TooMuchWorkError(Exception):
    """A line takes more than MAX_WORK instructions."""


class _Gap(NamedTuple):
    """Between two characters of a line."""

    line: str
    at: int

    def holds(self, op: PatternOp) -> bool:
        """Return whether an assertion is true here."""
        line, at = self
        if op is PatternOp.BEGIN:
            return at == 0
        if op is PatternOp.END:
            return at == len(line)
        return _is_word(line[at - 1 : at]) is not _is_word(line[at : at + 1])


class LineMatcher:
    """Matcher of one pattern."""

    def __init__(self, pattern: LinePattern) -> None:
        """Find the text that every matching line contains, as a quick test."""
        self._program = pattern.program
        self._groups = pattern.groups
        self._literal = _literal(pattern)
        self.work = 0
        """Instructions of the last search."""

    def search(self, line: str) -> Mapping[str, str] | None:
        """Return the text of each group in the leftmost match. None: no match.

        Raises:
            TooMuchWorkError: the search exceeds its bound.
        """
        self.work = 1
        # Most lines do not match. A text search is far cheaper than the machine.
        if self._literal not in line:
            return None
        slots = self._run(line)
        if slots is None:
            return None
        return {
            name: line[slots[2 * number] : slots[2 * number + 1]]
            for number, name in enumerate(self._groups)
            if slots[2 * number + 1] >= slots[2 * number] >= 0
        }

    def _run(self, line: str) -> _Slots | None:
        program, empty = self._program, (-1,) * (2 * len(self._groups))
        threads: list[_Thread] = []
        matched: _Slots | None = None
        # One pass over the characters. Threads are in order of preference, first the best.
        for at in range(len(line) + 1):
            if matched is None:  # a match that begins later is less preferred than all
                standing = {place for place, _ in threads}
                threads += self._followed((0, empty), _Gap(line, at), standing)
            seen: set[int] = set()
            following: list[_Thread] = []
            char = line[at] if at < len(line) else ""
            for place, slots in threads:
                step = program[place]
                if step.op is PatternOp.MATCH:
                    matched = slots
                    break  # the threads behind are less preferred
                # Advance the threads that accept this character.
                if char and (char in step.chars) is not step.negated:
                    following += self._followed((place + 1, slots), _Gap(line, at + 1), seen)
            threads = following
            if not threads and matched is not None:
                break
        return matched

    def _followed(self, thread: _Thread, here: _Gap, seen: set[int]) -> list[_Thread]:
        """Follow a thread to the instructions that consume a character.

        Raises:
            TooMuchWorkError: the search exceeds its bound.
        """
        program, stack = self._program, [thread]
        reached: list[_Thread] = []
        while stack:
            # Depth first keeps the order of preference.
            place, slots = stack.pop()
            self.work += 1
            if self.work > MAX_WORK:
                raise TooMuchWorkError
            if place in seen:
                continue
            seen.add(place)
            step = program[place]
            match step.op:
                case PatternOp.CHAR | PatternOp.MATCH:
                    reached.append((place, slots))
                case PatternOp.SPLIT:
                    stack += ((step.y, slots), (step.x, slots))
                case PatternOp.JUMP:
                    stack.append((step.x, slots))
                case PatternOp.SAVE:
                    stack.append((place + 1, (*slots[: step.x], here.at, *slots[step.x + 1 :])))
                case _:
                    if here.holds(step.op):
                        stack.append((place + 1, slots))
        return reached


def _is_word(char: str) -> bool:
    return char == "_" or (char.isascii() and char.isalnum())


def _literal(pattern: LinePattern) -> str:
    """Return the longest text that every match must contain, before the first branch."""
    longest = run = ""
    for step in pattern.program:
        if step.op in {PatternOp.SPLIT, PatternOp.JUMP}:
            break
        if step.op is PatternOp.CHAR:
            [*chars] = step.chars
            run = run + chars[0] if len(chars) == 1 and not step.negated else ""
            longest = max(longest, run, key=len)
    return longest
