"""How long a whole gang has shown no work."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from drumline_agent.leader.idle_watch import LONGEST_LOOK_SECONDS, IdleWatch, pause_of
from drumline_agent.protocol.member_reports import RankView
from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.state.work_pace import WorkPace
from drumline_contract import Pause


def view(rank: int, pause: Pause | None, *, done: bool = False) -> RankView:
    return RankView(
        rank=rank,
        position=(7, 0, 7),
        silent_seconds=0.0,
        patience_seconds=1e12,
        done=done,
        pause=pause,
    )


def pause(seconds: float, usual: float = 0.0) -> Pause:
    return Pause(seconds=seconds, usual_seconds=usual)


def test_a_gang_pauses_as_long_as_the_rank_that_worked_last_and_learns_of_the_slowest() -> None:
    views = [view(0, pause(90.0, 10.0)), view(1, pause(85.0)), view(2, pause(99.0, 3.0))]
    assert pause_of(views) == pause(85.0, 10.0)


def test_who_has_ended_does_not_count() -> None:
    views = [view(0, None, done=True), view(1, pause(85.0, 2.0))]
    assert pause_of(views) == pause(85.0, 2.0)
    assert pause_of([view(0, pause(85.0, 2.0), done=True)]) is None


def test_nothing_is_said_of_a_gang_with_a_rank_that_starts_or_without_any_known_step() -> None:
    assert pause_of([view(0, pause(85.0, 2.0)), view(1, None)]) is None
    assert pause_of([view(0, pause(85.0)), view(1, pause(85.0))]) is None
    assert pause_of([]) is None


def test_only_what_was_watched_counts() -> None:
    watch = IdleWatch()
    seen = [watch.look([view(0, pause(9_000.0, 1.0))], now=float(at)) for at in range(4)]
    assert seen == [pause(float(at), 1.0) for at in range(4)]
    frozen = watch.look([view(0, pause(9_900.0, 1.0))], now=903.0)
    assert frozen == pause(3.0 + LONGEST_LOOK_SECONDS, 1.0)
    assert watch.look([view(0, pause(0.5, 1.0))], now=904.0) == pause(0.5, 1.0)


def test_a_gang_that_is_not_known_for_a_moment_is_watched_anew() -> None:
    watch = IdleWatch()
    for at in range(100):
        watch.look([view(0, pause(500.0, 1.0))], now=float(at))
    assert watch.look((), now=100.0) is None
    assert watch.look([view(0, pause(600.0, 1.0))], now=101.0) == pause(0.0, 1.0)


def beat(step: int, *, at: float, phase: Phase = Phase.FORWARD) -> Heartbeat:
    return Heartbeat(
        generation=1,
        attempt=0,
        rank=0,
        step=step,
        total_steps=10**6,
        phase=phase,
        time_seconds=at,
    )


def a_life(dice: random.Random) -> Iterator[tuple[float, Phase | None]]:
    """Seconds until the next sign of a rank that works, and its phase; None: it starts again.

    Steps take up to twice the longest before and a minute, as a slow batch or a neighbour's save
    may; phases that may take long take as long as they like.
    """
    step = dice.choice((0.05, 1.0, 30.0, 400.0))
    longest = step
    yield from ((step, Phase.FORWARD) for _ in range(4))
    for _ in range(60):
        match dice.randrange(12):
            case 0:
                yield step, dice.choice((Phase.CHECKPOINT, Phase.EVALUATION, Phase.SNAPSHOT))
                yield dice.uniform(0.0, 10_000.0), Phase.FORWARD
            case 1:
                yield dice.uniform(0.0, 60.0), None
                yield from ((dice.uniform(0.0, 3_000.0), Phase.FORWARD) for _ in range(2))
            case 2:
                pause = dice.uniform(0.0, 2.0 * longest + 60.0)
                longest = max(longest, pause)
                yield pause, Phase.DATA
            case _:
                yield step * dice.uniform(0.5, 1.0), Phase.FORWARD


@pytest.mark.parametrize("seed", range(20))
def test_no_gang_that_works_is_ever_idle_and_one_that_stops_is(seed: int) -> None:
    dice = random.Random(seed)
    work, watch, now, step = WorkPace(), IdleWatch(), 0.0, 0
    work.note(beat(0, at=0.0, phase=Phase.STARTING))
    for seconds, phase in a_life(dice):
        ends_at = now + seconds
        for look in _looks(now, ends_at, dice):
            seen = watch.look([view(0, work.pause(now=look))], now=look)
            assert seen is None or not seen.is_idle, (seed, step, seen)
        now = ends_at
        if phase is None:
            work.begin_attempt()
            work.note(beat(step, at=now, phase=Phase.RESTORING))
        else:
            step += 1
            work.note(beat(step, at=now, phase=phase))
    for _ in range(3):
        now, step = now + 1.0, step + 1
        work.note(beat(step, at=now))
    limit = 2.0 * work.usual_seconds + 60.0
    is_idle = False
    for look in _looks(now, now + limit + 20.0, dice, frozen=False):
        seen = watch.look([view(0, work.pause(now=look))], now=look)
        is_idle = seen is not None and seen.is_idle
    assert is_idle


def _looks(
    begin: float, end: float, dice: random.Random, *, frozen: bool = True
) -> Iterator[float]:
    """When the leader looks: now and then it stands still for minutes."""
    now = begin
    while True:
        now += dice.uniform(60.0, 900.0) if frozen and dice.random() < 0.01 else 4.0
        if now >= end:
            return
        yield now
