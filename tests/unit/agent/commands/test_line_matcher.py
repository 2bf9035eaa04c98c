from __future__ import annotations

import pytest

from drumline_agent.commands.line_matcher import MAX_WORK, LineMatcher, TooMuchWorkError
from drumline_contract import LinePattern


def matcher(text: str) -> LineMatcher:
    return LineMatcher(LinePattern.parse(text))


@pytest.mark.parametrize(
    ("pattern", "line", "groups"),
    [
        (r"step (?P<step>\d+)", "at step 12 of 90", {"step": "12"}),
        (r"step (?P<step>\d+)(?: of (?P<totalSteps>\d+))?", "step 12", {"step": "12"}),
        (r"^(?P<step>\d+)$", "12 ", None),
        (
            r"(?P<step>a|ab)(?P<loss>c|bcd)",
            "abcd",
            {"step": "a", "loss": "bcd"},
        ),  # Perl's, not POSIX'
        (r"(?P<step>.+?)b", "aabab", {"step": "aa"}),
        (r"(?P<step>.+)b", "aabab", {"step": "aaba"}),
        (r"\bloss (?P<loss>\S+)", "val_loss 1 loss 2", {"loss": "2"}),
        (r"λ=(?P<loss>[^,]+),", "λ=é,", {"loss": "é"}),
        (r"(?P<step>\d+) steps", "no literal of it", None),
    ],
)
def test_the_leftmost_preferred_match_is_found(
    pattern: str, line: str, groups: dict[str, str] | None
) -> None:
    assert matcher(pattern).search(line) == groups


@pytest.mark.parametrize("pattern", ["(?:a+)+$", "(?:a|a)+$", "(?:a|aa)+$", "a?a?a?a?a?a?aaaaaa$"])
def test_what_takes_years_by_backtracking_takes_a_moment(pattern: str) -> None:
    looked = matcher(pattern)
    assert looked.search("a" * 200 + "!") is None
    assert looked.work < MAX_WORK


def test_a_line_has_a_limit() -> None:
    with pytest.raises(TooMuchWorkError):
        matcher("(?:aa?){64}c|(?:a[ab]?){64}d").search("a" * 1024)


def test_a_line_without_the_pattern_s_text_costs_nothing() -> None:
    looked = matcher(r"loss=(?P<loss>\d+)")
    assert looked.search("a" * 1024) is None
    assert looked.work == 1
