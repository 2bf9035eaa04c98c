from __future__ import annotations

import re

import pytest

from drumline_contract import ContractError, LinePattern

WORKS = (
    r"step (?P<step>\d+)/(?P<totalSteps>\d+)",
    r"^\[\d{4}-\d\d-\d\d .*?\] step[=:]\s*(?P<step>[\d,]+)\b.*loss (?P<loss>[-+.eE0-9]+|nan)$",
    r"(?:train|eval)_loss\s?\t?[^a-z\]]{1,8}(?P<loss>\S+)",
    r"a{2}b{2,}c{0,3}d??e*?f+?[]a-c-]é.",
)


@pytest.mark.parametrize("text", WORKS)
def test_a_pattern_has_the_groups_that_python_sees(text: str) -> None:
    assert list(LinePattern.parse(text).groups) == list(re.compile(text).groupindex)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "1 to 256 characters"),
        ("a" * 257, "1 to 256 characters"),
        ("(a", r"a \( without its \)"),
        ("a)", r"a \) without its \("),
        ("*a", r"nothing before \*; for the character write \\\*"),
        ("^*", "nothing that could be repeated"),
        ("a**", "two quantifiers in a row"),
        ("a{x}", r"\{ must be \{m\}, \{m,\} or \{m,n\}"),
        ("a{3,2}", "must go up, to at most 64"),
        ("a{65}", "must go up, to at most 64"),
        ("(?:a{64}){64}", "too long once its repeats are written out"),
        ("(?:a*)*b", "what is repeated may match nothing"),
        ("(?:|a){2}", "what is repeated may match nothing"),
        (r"(a)\1", r"\\1 is not supported"),
        ("(?=a)", r"only \(\?: and \(\?P<name>"),
        ("(?<!a)b", r"only \(\?: and \(\?P<name>"),
        ("(?P=name)", r"only \(\?: and \(\?P<name>"),
        ("(?i)a", r"only \(\?: and \(\?P<name>"),
        ("(?P<a b>x)", "a group's name"),
        ("(?P<a", "a group's name"),
        ("(?P<a>x)(?P<a>y)", "two groups named a"),
        ("[a", r"it ends after \["),
        ("[z-a]", "must go up"),
        (r"[\D]", r"in \[\] no"),
        ("a\\", "it ends after"),
        ("(" * 9 + ")" * 9, "groups in more than 8 others"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(ContractError, match=complaint):
        LinePattern.parse(text)
