from __future__ import annotations

import pytest

from drumline_agent.commands.pattern_watch import LINES, SECONDS, SILENT_LINES, PatternWatch

SENTENCE = "no line that the program printed has matched a pattern with {}: "


def words(watch: PatternWatch, *, lines: int = 1, at: float = 0.0) -> str:
    """What it says after so many lines at this time."""
    for _ in range(lines):
        said = watch.printed(at=at)
    return said


def test_a_program_has_its_time_until_the_first_step() -> None:
    watch = PatternWatch(["step", "loss"])
    assert words(watch, lines=LINES - 1) == ""
    assert words(watch).startswith(SENTENCE.format("loss and step"))


def test_few_lines_are_enough_after_ten_minutes() -> None:
    watch = PatternWatch(["step"])
    assert words(watch, at=5.0) == ""
    assert words(watch, at=4.9 + SECONDS) == ""
    assert words(watch, at=5.0 + SECONDS).startswith(SENTENCE.format("step"))


def test_a_match_takes_it_back_and_what_is_still_missing_is_named() -> None:
    watch = PatternWatch(["step", "loss"])
    words(watch, lines=LINES)
    watch.read(["step"])
    assert words(watch).startswith(SENTENCE.format("loss"))
    watch.read(["loss"])
    assert words(watch) == ""


def test_without_patterns_or_with_a_client_nothing_is_expected() -> None:
    told_by_client = PatternWatch(["step"])
    told_by_client.close()
    for watch in (PatternWatch([]), told_by_client):
        assert words(watch, lines=2 * LINES, at=2 * SECONDS) == ""


@pytest.mark.parametrize(
    ("groups", "remedy"),
    [([], "drumline run --progress"), (["step"], "template.progress.patterns")],
)
def test_after_a_hundred_lines_without_a_step_the_log_says_so_once(
    groups: list[str], remedy: str
) -> None:
    watch, hints = PatternWatch(groups), list[str]()
    for _ in range(3 * SILENT_LINES):
        watch.printed(at=0.0)
        hints.append(watch.hint())
    (hint,) = filter(None, hints)
    assert hints.index(hint) == SILENT_LINES - 1
    assert remedy in hint


def test_a_program_whose_step_is_known_gets_no_hint() -> None:
    for know in (PatternWatch.shown, PatternWatch.close):
        watch = PatternWatch([])
        know(watch)
        words(watch, lines=SILENT_LINES)
        assert watch.hint() == ""
