from __future__ import annotations

from drumline_trainer.agent.commands.line_allowance import (
    BURST_LINES,
    LINES_A_SECOND,
    LineAllowance,
)


def taken(allowance: LineAllowance, *, now: float, tries: int = 10_000) -> int:
    return sum(allowance.take(now=now) for _ in range(tries))


def test_a_burst_passes_and_then_so_many_a_second() -> None:
    allowance = LineAllowance()
    assert taken(allowance, now=5.0) == BURST_LINES
    assert taken(allowance, now=6.0) == LINES_A_SECOND
    assert taken(allowance, now=6.01) == 0
    assert taken(allowance, now=6.03) == 1
    assert taken(allowance, now=1e6) == BURST_LINES


def test_a_clock_that_goes_back_gives_nothing() -> None:
    allowance = LineAllowance()
    taken(allowance, now=5.0)
    assert taken(allowance, now=4.0) == 0
