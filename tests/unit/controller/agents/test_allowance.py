"""How many requests the watch of one gang may make, on a clock of the test's own."""

from __future__ import annotations

import pytest

from drumline.controller.agents.allowance import RequestAllowance


def test_a_burst_is_free_and_then_the_refill_sets_the_pace() -> None:
    allowance = RequestAllowance()
    for _ in range(104):
        assert allowance.delay(0.0, members=1, gangs=1) == 0.0
        allowance.take(1, 0.0, members=1, gangs=1)
    assert allowance.delay(0.0, members=1, gangs=1) == pytest.approx(20 / 104)
    assert allowance.delay(20 / 104, members=1, gangs=1) == pytest.approx(0.0)


def test_a_bucket_is_full_again_after_a_while_and_never_fuller() -> None:
    allowance = RequestAllowance()
    allowance.take(104, 0.0, members=1, gangs=1)
    allowance.delay(1e6, members=1, gangs=1)
    allowance.take(104, 1e6, members=1, gangs=1)
    assert allowance.delay(1e6, members=1, gangs=1) > 0.0


def test_a_verdict_on_many_members_is_paid_later() -> None:
    allowance = RequestAllowance()
    allowance.take(3 * (100 + 4 * 256), 0.0, members=256, gangs=1)
    assert allowance.delay(0.0, members=256, gangs=1) == pytest.approx(40, rel=0.01)


@pytest.mark.parametrize("gangs", [1, 50, 51, 500, 5000, 20_000])
def test_a_quiet_long_poll_is_always_paid_for(gangs: int) -> None:
    """A gang without news is asked once in max(2 s, gangs / 250), less a fifth for the spread."""
    allowance, now = RequestAllowance(), 0.0
    for _ in range(2_000):
        assert allowance.delay(now, members=1, gangs=gangs) == 0.0
        allowance.take(1, now, members=1, gangs=gangs)
        now += max(2.0, gangs / 250)
