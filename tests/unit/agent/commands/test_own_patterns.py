from __future__ import annotations

from drumline_agent.commands.own_patterns import BURST_WORK, PatternReader, work_budget
from drumline_agent.commands.pattern_watch import LINES, PatternWatch
from drumline_agent.commands.progress_lines import ProgressLine
from drumline_agent.commands.token_bucket import TokenBucket
from drumline_contract import LinePattern
from tests.texts import missing

STEP = r"step (?P<step>[\d,]+)(?:/(?P<totalSteps>\d+))?"
LOSS = r"loss (?P<loss>\S+)(?:.*tok/s (?P<tokensPerSecond>\S+))?"


def reader(
    *patterns: str, budget: TokenBucket | None = None, watch: PatternWatch | None = None
) -> PatternReader:
    parsed = [LinePattern.parse(text) for text in patterns]
    watch = watch or PatternWatch([])
    budget = budget or work_budget()
    return PatternReader(parsed, budget=budget, watch=watch, clock=lambda: 0.0)


def test_figures_of_several_lines_are_put_together() -> None:
    lines = reader(STEP, LOSS)
    assert lines.read("loss 9") is None  # of which step?
    assert lines.read("nothing") is None
    assert lines.read("step 1,200/90000") == ProgressLine(step=1200, total_steps=90_000, loss=9.0)
    expected = ProgressLine(step=1200, total_steps=90_000, loss=2.5, tokens_per_second=1234.5)
    assert lines.read("loss 2.5 at tok/s 1,234.5") == expected
    assert lines.read("step 1300") == ProgressLine(
        step=1300, total_steps=90_000, loss=2.5, tokens_per_second=1234.5
    )


def test_a_pattern_that_matches_is_no_more_missed_and_so_are_its_optional_groups() -> None:
    watch = PatternWatch(["step", "totalSteps", "loss", "tokensPerSecond"])
    reader(STEP, LOSS, watch=watch).read("step 5")
    words = [watch.printed(at=0.0) for _ in range(LINES)]
    assert not missing(words[-1], "tokensPerSecond")


def test_what_is_no_number_is_none() -> None:
    lines = reader(STEP, LOSS)
    lines.read("step 5")
    assert lines.read("loss nan") == ProgressLine(step=5, not_finite="nan")
    assert lines.read("loss -") == ProgressLine(step=5)
    assert reader("(?P<step>.*)").read("-3") is None


def test_a_flood_of_lines_is_not_looked_at_beyond_the_budget() -> None:
    budget = work_budget()
    lines = reader("(?:aa?){64}(?P<step>b)", budget=budget)
    looked = 0
    while lines.read("a" * 5000) is None and budget.take(now=0.0):
        looked += 1
    assert looked <= BURST_WORK / 10_000 + 1
    assert not budget.take(now=0.0)
    assert budget.take(now=60.0)
