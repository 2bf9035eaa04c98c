from __future__ import annotations

from drumline_agent.commands.pod_clients import TokenRate
from drumline_client.wire import StepReport


def report(at: float, tokens: int) -> StepReport:
    return StepReport(at=at, phase="training", saves=False, step=1, tokens=tokens)


def test_the_rates_of_ranks_are_added_up() -> None:
    rate = TokenRate()
    rate.handle(0, report(100.0, 0))
    rate.handle(1, report(100.0, 50))
    assert rate.tokens_per_second is None
    rate.handle(0, report(105.0, 500))
    rate.handle(1, report(110.0, 1050))
    assert rate.tokens_per_second == 100 + 100
    rate.handle(0, report(106.0, 5000))  # too soon
    assert rate.tokens_per_second == 200


def test_a_counter_that_begins_anew_gives_no_negative_rate() -> None:
    rate = TokenRate()
    rate.handle(0, report(100.0, 900))
    rate.handle(0, report(110.0, 10))
    assert rate.tokens_per_second is None
    rate.handle(0, report(120.0, 110))
    assert rate.tokens_per_second == 10
