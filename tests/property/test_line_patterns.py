"""What a line pattern captures is what Python's `re` captures, for random patterns and lines."""

from __future__ import annotations

import re
from random import Random

import pytest

from drumline_agent.commands.line_matcher import LineMatcher
from drumline_contract import ContractError, LinePattern
from tests.property.scale import many

QUANTIFIERS = ("*", "+", "?", "{2}", "{1,2}", "{0,3}?", "*?", "+?", "??", "{2,}")
ATOMS = (".", "[ab]", "[^a]", r"\w", r"\d", r"\s", "1", "a", "b", "c")


def some_pattern(random: Random, depth: int = 0) -> str:
    match random.randrange(8 if depth < 3 else 3):
        case 0 | 1:
            return random.choice(ATOMS) + random.choice(("", *QUANTIFIERS))
        case 2:
            return random.choice(("^", "$", r"\b"))
        case 3:
            return f"(?:{some_pattern(random, depth + 1)}){random.choice(('', *QUANTIFIERS))}"
        case 4:
            return f"{some_pattern(random, depth + 1)}|{some_pattern(random, depth + 1)}"
        case _:
            return some_pattern(random, depth + 1) + some_pattern(random, depth + 1)


@pytest.mark.parametrize("seed", range(many(2, 100)))
def test_captures_are_pythons(seed: int) -> None:
    random = Random(seed)
    compared = 0
    for _ in range(200):
        parts = [some_pattern(random) for _ in range(3)]
        text = f"(?:{parts[0]})(?P<step>{parts[1]})(?:(?P<loss>{parts[2]}))?"
        try:
            matcher = LineMatcher(LinePattern.parse(text))
        except ContractError:
            continue  # it repeats what may match nothing
        expression = re.compile(text, re.ASCII)
        for _ in range(5):
            line = "".join(random.choice("abc1 ") for _ in range(random.randrange(9)))
            expected = expression.search(line)
            groups = expected and {k: v for k, v in expected.groupdict().items() if v is not None}
            assert matcher.search(line) == groups, (text, line)
            compared += 1
    assert compared > 200
