"""Patterns that are matched at once match what `fnmatchcase` says of each."""

from __future__ import annotations

import random
from fnmatch import fnmatchcase

from drumline_contract.config.name_patterns import NamePatterns

TOKENS = ("a", "b", ".", "?", "*", "[ab]", "[!a]", "[", "]", "[]b]")


def test_they_are_those_of_the_library_whole_and_in_halves() -> None:
    dice = random.Random(0)
    hits = 0
    for _ in range(500):
        few = ["".join(dice.choices(TOKENS, k=dice.randint(1, 6))) for _ in range(3)]
        patterns = NamePatterns(dict.fromkeys(few))
        names = ["".join(dice.choices("ab.[]", k=dice.randint(0, 6))) for _ in range(20)]
        for name in names:
            expected = any(fnmatchcase(name, pattern) for pattern in few)
            hits += expected
            assert patterns.matches(name) is expected, (few, name)
            for cut in range(len(name) + 1):
                halves = patterns.after(name[:cut]) & patterns.before(name[cut:])
                assert bool(halves) is expected, (few, name, cut)
        unused = [each for each in few if not any(fnmatchcase(name, each) for name in names)]
        assert patterns.unused(names) == list(dict.fromkeys(unused))
    assert 1000 < hits < 9000
