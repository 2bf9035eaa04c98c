"""One job may go below the guarantee of other queues until a moment, and pays them back then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import Decisions, Gang, Override, Queue, Snapshot
from drumline_scheduler.overrides import gpus_below_guarantee, with_overrides
from tests.property.invariants import violations
from tests.unit.scheduler.builders import (
    admitted,
    after,
    cluster,
    gang,
    queue,
    racks,
    run,
    still_waiting,
    without,
)

UNTIL = 1000.0
HERO = gang("hero", nodes=2, gpus=2, queue="x", at=1.0)
GRANTED = (Override(job=HERO.key, until=UNTIL, granted_by="jane", reason="launch"),)
OTHER = gang("other", gpus=2, queue="x")
THEIRS = [gang(f"y{i}", gpus=2, queue="y") for i in range(2)]


def world(*, override: bool = True, **changes: object) -> Snapshot:
    """Two queues of 4 GPUs on 8: x holds 2, y 4 and a third queue 2 of 0, all of them busy."""
    first = queue("x", 4, parent="org", overrides=GRANTED if override else ())
    queues = (queue("org"), first, queue("y", 4, parent="org", **changes))
    running = [
        admitted(OTHER, "n0"),
        *(admitted(each, f"n{i + 1}") for i, each in enumerate(THEIRS)),
    ]
    return cluster(*racks(count=1, nodes=3), queues=queues, running=running)


def victims(decisions: Decisions) -> list[tuple[str, str]]:
    return [
        (victim.key.removeprefix("training/"), str(victim.why))
        for preemption in decisions.preemptions
        for victim in preemption.victims
    ]


def test_a_queue_that_takes_quota_back_leaves_a_job_with_an_override_alone() -> None:
    """Otherwise it would start by preemption, leave for its own queue, and preempt again."""
    snapshot, _ = started()
    org, mine, other = snapshot.queues
    mine = replace(mine, evicts_excess=True, borrowing_limit={"h100": 0})
    snapshot = replace(snapshot, queues=(org, mine, other))
    assert run(snapshot).evictions == ()
    assert len(run(snapshot, now=UNTIL).evictions) == 1


def started() -> tuple[Snapshot, Gang]:
    """The world in which the hero runs in the place of y0 or y1, and that one waits."""
    snapshot = world()
    first = run(snapshot, HERO)
    (gone, _), *_ = victims(first)
    left = without(after(snapshot, [HERO], first), *(name for name, _ in victims(first)))
    second = run(left, *still_waiting([HERO], first))
    assert [placed.key for placed in second.placed] == [HERO.key]
    return after(left, [HERO], second), next(each for each in THEIRS if each.key.endswith(gone))


def test_a_job_takes_what_another_queue_is_guaranteed_only_with_an_override() -> None:
    assert run(world(override=False), HERO).preemptions == ()
    decisions = run(world(), HERO)
    assert [why for _, why in victims(decisions)] == ["Override", "Override"]
    assert {"jane", "launch"} <= set(decisions.preemptions[0].override.replace(":", " ").split())
    assert "1970-01-01T00:16:40Z" in decisions.preemptions[0].override
    assert decisions.retry_at == UNTIL
    assert run(world(), HERO, now=UNTIL).preemptions == ()
    assert run(world(), replace(HERO, key="training/another", uid="u")).preemptions == ()
    assert run(world(), replace(HERO, queue="y")).preemptions == ()


@pytest.mark.parametrize("now", [0.0, UNTIL])
def test_the_guarantee_counts_again_once_the_override_ends(now: float) -> None:
    snapshot, _ = started()
    waiting = [each for each in THEIRS if each.uid not in {h.gang.uid for h in snapshot.admitted}]
    decisions = run(snapshot, *waiting, now=now)
    if now < UNTIL:
        assert decisions.preemptions == ()
        assert violations(snapshot=snapshot, pending=waiting, decisions=decisions, now=now) == ()
    else:
        assert {("hero", "Borrowed"), ("other", "Borrowed")} & {*victims(decisions)}


def test_nobody_takes_the_job_s_places_meanwhile() -> None:
    snapshot, _ = started()
    urgent = gang("urgent", nodes=2, gpus=2, queue="x", priority=9)
    assert ("hero", "LowerPriority") not in victims(run(snapshot, urgent))
    assert ("hero", "LowerPriority") in victims(run(snapshot, urgent, now=UNTIL))


def test_limits_and_minimum_runtimes_stay() -> None:
    assert run(world(lending_limit={"h100": 0}), HERO).preemptions == ()
    assert run(world(min_runtime_seconds=60.0), HERO).preemptions == ()
    assert run(world(min_runtime_seconds=60.0), HERO, now=60.0).preemptions != ()


def test_borrowed_gpus_are_taken_before_guaranteed_ones() -> None:
    lender = queue("z", 2, parent="org")
    snapshot = world()
    borrows = replace(snapshot, queues=(*snapshot.queues, lender))
    borrows = replace(borrows, queues=tuple(_less(each) for each in borrows.queues))
    small = replace(HERO, nodes=1)
    assert [why for _, why in victims(run(borrows, small))] == ["Borrowed"]


def _less(item: Queue) -> Queue:
    return replace(item, nominal={"h100": 2}) if item.name == "y" else item


def test_what_others_miss_is_counted_and_no_more() -> None:
    snapshot, _ = started()
    waiting = [each for each in THEIRS if each.uid not in {h.gang.uid for h in snapshot.admitted}]
    key = ("x", HERO.key)
    assert gpus_below_guarantee(snapshot, pending=waiting, now=0.0) == {key: 4}
    assert gpus_below_guarantee(snapshot, pending=waiting[:1], now=0.0) == {key: 2}
    assert gpus_below_guarantee(snapshot, pending=(), now=0.0) == {key: 0}
    assert gpus_below_guarantee(snapshot, pending=waiting, now=UNTIL) == {}


def test_the_quota_moves_with_the_job_and_no_limit_with_it() -> None:
    snapshot, _ = started()
    applied = with_overrides(snapshot, pending=(), now=0.0)
    nominal = {each.name: each.nominal["h100"] for each in applied.snapshot.queues}
    used = sum(held.gpus for held in snapshot.admitted if held.gang.queue == "x")
    assert nominal == {"org": 0, "x": max(4, used), "y": 8 - max(4, used)}
    assert applied.snapshot.queues[2].overridden == {"h100": max(4, used) - 4}
