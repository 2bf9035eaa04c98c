r"""Regular expressions of users for log lines, with linear matching time; pure.

The syntax is a subset of RE2: literals, `.`, classes, `\d \w \s` and their negations, groups, `|`,
`* + ? {m,n}` and their lazy forms, `^ $ \b`. Back-references and lookaround are not supported.
Without these a pattern is a program for a machine that reads each character once
(https://swtch.com/~rsc/regexp/regexp2.html). The cost of a line is at most its length times the
length of the program. Python's `re` backtracks, and takes years for some short patterns. A repeated
part must not match the empty string, because engines differ in its captures.

    a+b|c    0 split 1 5   1 char a   2 split 1 3   3 char b   4 jump 6   5 char c   6 match
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from drumline_contract.json_fields import ContractError

MAX_PATTERN_CHARS: Final = 256
MAX_INSTRUCTIONS: Final = 512
MAX_DEPTH: Final = 8
MAX_REPEAT: Final = 64
_DIGITS: Final = frozenset("0123456789")
_WORD: Final = _DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_SPACE: Final = frozenset(" \t\n\r\f\v")
_CLASSES: Final = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}


class PatternOp(IntEnum):
    """Operation of an instruction."""

    CHAR = 0
    """Consume the next character if it is in a set, then continue."""
    SPLIT = 1
    """Continue at two addresses. The first is preferred."""
    JUMP = 2
    SAVE = 3
    """Remember where a group begins or ends."""
    BEGIN = 4
    """Only at the beginning of the line."""
    END = 5
    BOUNDARY = 6
    """Only between a word character and another character."""
    MATCH = 7


@dataclass(frozen=True, slots=True)
class PatternStep:
    """One step of the machine."""

    op: PatternOp
    x: int = 0
    """The next instruction of a jump, the first of a split; the slot of a save."""
    y: int = 0
    """The second instruction of a split."""
    chars: frozenset[str] = frozenset()
    negated: bool = False
    """All characters but these."""


@dataclass(frozen=True, slots=True)
class LinePattern:
    """A pattern that is ready to be looked for."""

    text: str
    program: tuple[PatternStep, ...]
    groups: tuple[str, ...]
    """Names of groups; group `i` is between the slots `2 i` and `2 i + 1`."""

    @classmethod
    def parse(cls, text: str) -> LinePattern:
        """Read a pattern.

        Raises:
            ContractError: what is wrong with it, and where.
        """
        if not 0 < len(text) <= MAX_PATTERN_CHARS:
            raise ContractError(f"pattern: must have 1 to {MAX_PATTERN_CHARS} characters")
        return _Parser(text).pattern()


@dataclass(slots=True)
class _Parser:
    """Recursive descent; each rule appends the program of what it has read."""

    text: str
    at: int = 0
    depth: int = 0
    program: list[PatternStep] = field(default_factory=list[PatternStep])
    groups: list[str] = field(default_factory=list[str])

    def pattern(self) -> LinePattern:
        self._alternatives()
        # A closing parenthesis ends the alternatives early.
        if self.at < len(self.text):
            raise self._error("a ) without its (")
        self._emit(PatternStep(PatternOp.MATCH))
        return LinePattern(self.text, tuple(self.program), tuple(self.groups))

    def _alternatives(self) -> None:
        begin = len(self.program)
        self._sequence()
        if not self._takes("|"):
            return
        # Cut out the first branch, insert the split before it, and append it again one place
        # further.
        first = self.program[begin:]
        del self.program[begin:]
        # The second branch begins after the first branch and its jump.
        self._emit(PatternStep(PatternOp.SPLIT, begin + 1, begin + len(first) + 2))
        # Addresses in the branch move by one.
        self._copy(first, moved_by=1)
        jump = len(self.program)
        self._emit(PatternStep(PatternOp.JUMP))
        self._alternatives()
        # The jump's target is known only now.
        self.program[jump] = PatternStep(PatternOp.JUMP, len(self.program))

    def _sequence(self) -> None:
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            begin = len(self.program)
            # Anchors match no character, so a repeat of them would be endless.
            repeatable = self._atom()
            if self.at < len(self.text) and self.text[self.at] in "*+?{":
                if not repeatable:
                    raise self._error("nothing that could be repeated")
                self._quantifier(begin)

    def _atom(self) -> bool:
        """Read a character, a class, a group or an anchor; whether it may be repeated."""
        char = self._next()
        match char:
            case "^" | "$":
                self._emit(PatternStep(PatternOp.BEGIN if char == "^" else PatternOp.END))
                return False
            case "(":
                self._group()
            case "[":
                self._class()
            case ".":
                # An empty negated set matches every character, newline included: a line has none.
                self._emit(PatternStep(PatternOp.CHAR, negated=True))
            case "*" | "+" | "?" | "{":
                raise self._error(f"nothing before {char}; for the character write \\{char}")
            case "\\":
                return self._escape()
            case _:
                self._emit(PatternStep(PatternOp.CHAR, chars=frozenset(char)))
        return True

    def _escape(self) -> bool:
        char = self._next(after="\\")
        if char == "b":
            self._emit(PatternStep(PatternOp.BOUNDARY))
            return False
        chars, negated = self._escaped(char)
        self._emit(PatternStep(PatternOp.CHAR, chars=chars, negated=negated))
        return True

    def _escaped(self, char: str) -> tuple[frozenset[str], bool]:
        """Return the characters of an escape, and whether the escape negates them.

        Raises:
            ContractError: the escape is not supported.
        """
        # An upper-case letter negates the class: \D is everything but \d.
        if char.lower() in _CLASSES:
            return _CLASSES[char.lower()], char.isupper()
        if char in _CONTROLS:
            return frozenset(_CONTROLS[char]), False
        # Unknown letters are reserved, as in RE2. Other characters stand for themselves.
        if char.isascii() and char.isalnum():
            raise self._error(f"\\{char} is not supported")
        return frozenset(char), False

    def _group(self) -> None:
        name = None
        if self._takes("?"):
            if self._takes("P<"):
                name = self._name()
            elif not self._takes(":"):
                raise self._error("(? of a kind that is not supported: only (?: and (?P<name>")
        self.depth += 1
        # The bound limits the parser's recursion.
        if self.depth > MAX_DEPTH:
            raise self._error(f"groups in more than {MAX_DEPTH} others")
        # Unnamed groups are not captured, so they need no slot.
        slot = None if name is None else 2 * len(self.groups)
        if name is not None and slot is not None:
            self.groups.append(name)
            self._emit(PatternStep(PatternOp.SAVE, slot))
        self._alternatives()
        if not self._takes(")"):
            raise self._error("a ( without its )")
        if slot is not None:
            self._emit(PatternStep(PatternOp.SAVE, slot + 1))
        self.depth -= 1

    def _name(self) -> str:
        name, end, _ = self.text[self.at :].partition(">")
        if not end or not name.isidentifier() or not name.isascii():
            raise self._error("a group's name must be letters, digits and _, and end with >")
        if name in self.groups:
            raise self._error(f"two groups named {name}")
        self.at += len(name) + 1
        return name

    def _class(self) -> None:
        negated, chars, begin = self._takes("^"), set[str](), self.at
        # A ] at the beginning stands for itself.
        while not (self.at > begin and self._takes("]")):
            low = self._class_member(chars)
            if low is None or not self.text.startswith("-", self.at):
                continue
            # A - before ] stands for itself.
            if self.text.startswith("-]", self.at):
                continue
            self.at += 1
            high = self._class_member(set())
            # The bound keeps a set small. A range over all of Unicode would have a million entries.
            if high is None or not ord(low) <= ord(high) <= ord(low) + 255:
                raise self._error("a range in [] must go up, by at most 255")
            chars.update(map(chr, range(ord(low), ord(high) + 1)))
        self._emit(PatternStep(PatternOp.CHAR, chars=frozenset(chars), negated=negated))

    def _class_member(self, chars: set[str]) -> str | None:
        """Add the next character of a class; None where it stands for several."""
        char = self._next(after="[")
        if char != "\\":
            chars.add(char)
            return char
        members, negated = self._escaped(self._next(after="\\"))
        # A negated class inside a set would need a complement in the union.
        if negated:
            raise self._error("in [] no \\D, \\W, \\S; put [^...] around their opposites")
        chars.update(members)
        return next(iter(members)) if len(members) == 1 else None

    def _quantifier(self, begin: int) -> None:
        least, most = self._bounds()
        lazy = self._takes("?")
        if self.at < len(self.text) and self.text[self.at] in "*+?{":
            raise self._error("two quantifiers in a row; put (?: ) around the first")
        body = self.program[begin:]
        del self.program[begin:]
        # Engines differ in captures of empty repeats, and a loop could run without progress.
        if most != 1 and _may_be_empty(body, begin):
            raise self._error("what is repeated may match nothing; repeat a part that does not")
        # The required repeats are copies.
        for _ in range(least):
            self._copy(body, moved_by=len(self.program) - begin)
        # Unbounded: a split, the body, and a jump back to the split.
        if most is None:
            split = len(self.program)
            self._split(split + 1, split + len(body) + 2, lazy=lazy)
            self._copy(body, moved_by=len(self.program) - begin)
            self._emit(PatternStep(PatternOp.JUMP, split))
            return
        # Bounded: every optional repeat can leave to the same end.
        end = len(self.program) + (most - least) * (len(body) + 1)
        for _ in range(most - least):
            self._split(len(self.program) + 1, end, lazy=lazy)
            self._copy(body, moved_by=len(self.program) - begin)

    def _bounds(self) -> tuple[int, int | None]:
        char = self._next()
        if char != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        inside, end, _ = self.text[self.at :].partition("}")
        low, comma, high = inside.partition(",")
        numbers = [low, *([high] if high else [])]
        if not end or not all(each.isascii() and each.isdigit() for each in numbers):
            raise self._error("{ must be {m}, {m,} or {m,n}; for the character write \\{")
        self.at += len(inside) + 1
        # Four digits suffice, since more exceed the limit anyway.
        least = int(low[:4])
        most = int(high[:4]) if high else (None if comma else least)
        if least > MAX_REPEAT or (most is not None and not least <= most <= MAX_REPEAT):
            raise self._error(f"{{m,n}} must go up, to at most {MAX_REPEAT}")
        return least, most

    def _split(self, x: int, y: int, *, lazy: bool) -> None:
        # The order of the targets is the preference: greedy first enters the body.
        self._emit(
            PatternStep(PatternOp.SPLIT, y, x) if lazy else PatternStep(PatternOp.SPLIT, x, y)
        )

    def _copy(self, body: list[PatternStep], *, moved_by: int) -> None:
        # Addresses in the body are absolute, so a copy shifts them.
        for each in body:
            match each.op:
                case PatternOp.JUMP:
                    self._emit(PatternStep(PatternOp.JUMP, each.x + moved_by))
                case PatternOp.SPLIT:
                    self._emit(PatternStep(PatternOp.SPLIT, each.x + moved_by, each.y + moved_by))
                case _:
                    self._emit(each)

    def _emit(self, instruction: PatternStep) -> None:
        if len(self.program) >= MAX_INSTRUCTIONS:
            raise self._error("too long once its repeats are written out; lower {m,n}")
        self.program.append(instruction)

    def _takes(self, text: str) -> bool:
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def _next(self, *, after: str = "") -> str:
        if self.at >= len(self.text):
            raise self._error(f"it ends after {after}")
        self.at += 1
        return self.text[self.at - 1]

    def _error(self, reason: str) -> ContractError:
        return ContractError(f"pattern {self.text!r}, character {self.at}: {reason}")


def _may_be_empty(body: list[PatternStep], begin: int) -> bool:
    """Return whether a part of a program, with addresses from `begin`, matches the empty string."""
    # A search over instructions that consume nothing.
    seen, stack = set[int](), [0]
    while stack:
        at = stack.pop()
        if at == len(body):
            return True
        step = body[at]
        if at in seen or step.op is PatternOp.CHAR:
            continue
        seen.add(at)
        match step.op:
            case PatternOp.SPLIT:
                stack += (step.x - begin, step.y - begin)
            case PatternOp.JUMP:
                stack.append(step.x - begin)
            case _:
                stack.append(at + 1)
    return False
