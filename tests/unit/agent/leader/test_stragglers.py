"""Members that compute more slowly than their peers: who, since when, and when it is nobody."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from drumline_agent.leader.stragglers import STEADY_STEPS, Stragglers
from drumline_agent.protocol.member_reports import RankView, StepCompute
from drumline_contract import MAX_SLOW, GenerationRecord, Member, SlowMember

MEMBERSHIP = (1, 0)
FIRST = 10
"""The first measurement: it warms up."""


def record(*, members: int = 4, ranks: int = 1) -> GenerationRecord:
    return GenerationRecord(
        job_uid="job",
        generation=1,
        epoch=1,
        members=tuple(
            Member(index=2 * i, pod_uid=f"pod-{i}", address="", host="", ranks=ranks)
            for i in range(members)
        ),
    )


def measured(step: int, seconds: Sequence[float], *, stages: Sequence[int] = ()) -> list[RankView]:
    return [
        RankView(
            rank=rank,
            position=(step, 0, 0),
            silent_seconds=0,
            patience_seconds=1,
            compute=StepCompute(step=step, seconds=each, stage=stages[rank] if stages else 0),
        )
        for rank, each in enumerate(seconds)
    ]


def after(
    stragglers: Stragglers,
    *looks: Sequence[float],
    every: int = 10,
    first: int = FIRST,
    stages: Sequence[int] = (),
) -> tuple[SlowMember, ...]:
    slow: tuple[SlowMember, ...] = ()
    for number, seconds in enumerate(looks):
        views = measured(first + every * number, seconds, stages=stages)
        slow = stragglers.after(views, membership=MEMBERSHIP)
    return slow


def test_a_member_is_slow_once_it_has_been_for_twenty_steps() -> None:
    stragglers = Stragglers(record())
    even, uneven = (1.0, 1.0, 1.02, 1.0), (1.0, 1.0, 1.02, 1.3)
    assert after(stragglers, even, uneven, uneven) == ()
    slow = stragglers.after(measured(40, uneven), membership=MEMBERSHIP)
    # The third of the members has index 6; the median of 1, 1, 1.02 and 1.3 is 1.01.
    assert slow == (SlowMember(index=6, percent=29, steps=STEADY_STEPS),)
    assert stragglers.after(measured(40, uneven), membership=MEMBERSHIP) == slow


def test_whoever_recovers_is_not_slow_any_more() -> None:
    stragglers = Stragglers(record())
    uneven, even = (1.0, 1.0, 1.0, 1.2), (1.0, 1.0, 1.0, 1.0)
    assert after(stragglers, *[uneven] * 4)
    assert after(stragglers, *[even] * 4, first=50) == ()


@pytest.mark.parametrize(
    ("seconds", "stages"),
    [
        pytest.param((1.0, 1.0, 1.0, 1.14), (), id="by less than 15 %"),
        pytest.param((1.0, 1.0, 1.3), (0, 1, 2), id="with other work"),
        pytest.param((1.0, 1.3), (), id="one of two"),
        pytest.param((2.0, 2.0, 2.0, 2.0), (), id="all"),
    ],
)
def test_nobody_is_slow(seconds: tuple[float, ...], stages: tuple[int, ...]) -> None:
    stragglers = Stragglers(record(members=len(seconds)))
    assert after(stragglers, *[seconds] * 9, stages=stages) == ()


@pytest.mark.parametrize(
    ("members", "slow", "named"),
    [(7, 1, 1), (7, 2, 0), (8, 2, 2), (40, 10, MAX_SLOW), (40, 11, 0)],
)
def test_where_more_than_a_quarter_are_slow_it_is_the_job(
    members: int, slow: int, named: int
) -> None:
    stragglers = Stragglers(record(members=members))
    seconds = (1.0,) * (members - slow) + (1.5,) * slow
    assert len(after(stragglers, *[seconds] * 4)) == named


def test_a_stage_is_compared_with_itself() -> None:
    stragglers = Stragglers(record(members=6))
    seconds, stages = (1.0, 1.0, 1.4, 3.0, 3.0, 3.0), (0, 0, 0, 1, 1, 1)
    slow = after(stragglers, *[seconds] * 4, stages=stages)
    assert [(member.index, member.percent) for member in slow] == [(4, 40)]


def test_the_slowest_rank_stands_for_its_member() -> None:
    stragglers = Stragglers(record(members=3, ranks=2))
    slow = after(stragglers, *[(1.0, 1.0, 1.0, 1.0, 1.2, 1.5)] * 4)
    assert [(member.index, member.percent) for member in slow] == [(4, 50)]


def test_a_new_attempt_begins_anew() -> None:
    stragglers = Stragglers(record())
    uneven = (1.0, 1.0, 1.0, 2.0)
    assert after(stragglers, *[uneven] * 4)
    assert stragglers.after(measured(50, uneven), membership=(1, 1)) == ()
