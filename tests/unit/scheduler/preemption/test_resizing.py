"""Gangs of several legal sizes: how they start, what they do about losses, when they grow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import Admitted, BlockReason, Gang, Queue, Resized, Resources
from tests.texts import missing
from tests.unit.scheduler.builders import (
    STRICT,
    admitted,
    after,
    cluster,
    gang,
    node,
    queue,
    racks,
    run,
)

LOST_1 = frozenset({1})


def elastic(name: str = "e", *, sizes: tuple[int, ...] = (1, 2, 4), **changes: object) -> Gang:
    """A gang of whole nodes that can run with some sizes."""
    item = gang(name, nodes=sizes[-1], gpus=2)
    return replace(item, sizes=sizes, **changes)  # pyright: ignore[reportArgumentType]


def running(*places: str, elastic_gang: Gang | None = None, lost: tuple[int, ...] = ()) -> Admitted:
    return admitted(elastic_gang or elastic(), *places, lost=frozenset(lost))


@pytest.mark.parametrize(("nodes", "size"), [(5, 4), (4, 4), (3, 2), (2, 2), (1, 1)])
def test_it_starts_with_the_largest_legal_size_that_fits(nodes: int, size: int) -> None:
    placed = run(cluster(*racks(count=1, nodes=nodes)), elastic()).placed[0]
    assert len(placed.assignment) == size


def test_a_smaller_start_says_so() -> None:
    placed = run(cluster(*racks(count=1, nodes=3)), elastic()).placed[0]
    assert not missing(placed.message, "2 nodes", "rack-0", "2 of 4 pods")


def test_quota_bounds_the_size_too() -> None:
    snapshot = cluster(*racks(), queues=(queue("research", 5),))
    assert len(run(snapshot, elastic()).placed[0].assignment) == 2


def test_the_larger_size_wins_over_the_earlier_pool() -> None:
    nodes = [node("n0", "rack-0"), *(node(f"s{i}", "rack-0", pool="spot") for i in range(2))]
    snapshot = cluster(*nodes, pools=("h100", "spot"))
    placed = run(snapshot, elastic()).placed[0]
    assert (placed.pool, placed.assignment) == ("spot", ("s0", "s1"))


def test_below_its_smallest_size_it_waits_and_is_told_of_that_size() -> None:
    blocked = run(cluster(*racks(count=1)), elastic(sizes=(3, 6))).blocked[0]
    assert blocked.reason is BlockReason.EXCEEDS_CLUSTER
    assert blocked.needed == 6


def test_what_runs_small_pays_for_what_it_has() -> None:
    snapshot = cluster(*racks(), running=[running("n0")], queues=(queue("research", 8),))
    decisions = run(snapshot, gang("b", nodes=3, gpus=2))
    assert [placed.key for placed in decisions.placed] == ["training/b"]


def test_a_loss_is_replaced_at_the_present_size_where_there_is_a_spare() -> None:
    placed = run(cluster(*racks(count=1), running=[running("n0", "x", lost=(1,))])).placed[0]
    assert (placed.assignment, placed.replaced) == (("n0", "n1"), (1,))


def test_a_loss_without_a_spare_shrinks_to_the_largest_legal_size_at_once() -> None:
    held = running("n0", "x", "n1", "n2", lost=(1,))
    decisions = run(cluster(*racks()[:3], running=[held]))
    assert decisions.blocked == ()
    (resized,) = decisions.resized
    assert not missing(resized.message, "4", "2 of 4 pods", "rack-0")
    assert replace(resized, message="") == Resized(
        key="training/e",
        uid="uid-e",
        pool="h100",
        kept=(0, 2),
        added=(),
        level="rack",
        domain=("rack-0",),
    )


def test_a_spare_that_reaches_a_larger_legal_size_is_used() -> None:
    held = running("n0", "x", "y", "z", elastic_gang=elastic(sizes=(1, 2, 4)), lost=(1, 2, 3))
    resized = run(cluster(*racks()[:2], running=[held])).resized[0]
    assert (resized.kept, resized.added) == ((0,), ("n1",))


def test_it_never_shrinks_below_its_smallest_size() -> None:
    held = running("n0", "x", elastic_gang=elastic(sizes=(2, 4)), lost=(1,))
    blocked = run(cluster(*racks()[:1], running=[held])).blocked[0]
    assert blocked.reason is BlockReason.EXCEEDS_CLUSTER


def test_one_that_lost_everything_goes_on_with_what_is_there() -> None:
    held = running("x", "y", lost=(0, 1))
    resized = run(cluster(*racks()[:1], running=[held])).resized[0]
    assert (resized.kept, resized.added) == ((), ("n0",))


def test_it_stays_in_its_required_rack_when_it_is_resized() -> None:
    item = elastic(required_level="rack")
    held = running("n0", "x", "y", "z", elastic_gang=item, lost=(1, 2, 3))
    resized = run(cluster(*racks(), running=[held])).resized[0]
    assert (resized.kept, resized.added) == ((0,), ("n1",))
    whole = running("n0", elastic_gang=item)
    assert run(cluster(*racks(), running=[whole])).resized[0].added == ("n1",)


def test_it_grows_to_the_largest_legal_size_beside_its_own_places() -> None:
    resized = run(cluster(*racks(count=1, nodes=5), running=[running("n1", "n3")])).resized[0]
    assert (resized.kept, resized.added) == ((0, 1), ("n0", "n2"))
    assert not missing(resized.message, "2", "4 of 4 pods", "rack-0")


def test_after_it_grew_there_is_nothing_left_to_do() -> None:
    snapshot = cluster(*racks(count=1, nodes=5), running=[running("n1", "n3")])
    grown = after(snapshot, [], run(snapshot))
    assert grown.admitted[0].size == 4
    assert run(grown).resized == ()


@pytest.mark.parametrize(
    ("item", "grows"),
    [
        (gang("big", nodes=5, gpus=2), True),
        (gang("wide", nodes=4, gpus=2), False),
        (gang("other-queue", nodes=2, gpus=2, queue="small"), True),
        (gang("later", retry_at=9.0), False),
    ],
    ids=["can never start", "waits for capacity", "waits for its own quota", "backs off"],
)
def test_it_does_not_grow_in_front_of_one_that_waits_for_the_room(
    item: Gang, *, grows: bool
) -> None:
    queues = (queue("research", 100), Queue(name="small", nominal={"h100": 4}))
    small = admitted(gang("s", gpus=2, queue="small"), "n3")
    snapshot = cluster(*racks(), running=[running("n0"), small], queues=queues)
    assert bool(run(snapshot, item).resized) is grows


def test_it_does_not_grow_in_front_of_one_that_waits_for_the_same_quota() -> None:
    snapshot = cluster(*racks(), running=[running("n0")], queues=(queue("research", 6),))
    assert run(snapshot).resized[0].added == ("n1",)
    waits = gang("b", nodes=3, gpus=2)
    assert run(snapshot, waits).resized == ()


@pytest.mark.parametrize("change", [{"leaving": True}, {"lost": LOST_1}, {"pool": "gone"}], ids=str)
def test_it_does_not_grow_while_it_leaves_or_is_broken(change: dict[str, object]) -> None:
    held = replace(running("n0", "n1"), **change)  # pyright: ignore[reportArgumentType]
    decisions = run(cluster(*racks(count=1, nodes=5), running=[held]))
    assert all(len(resized.added) + len(resized.kept) <= 2 for resized in decisions.resized)


def test_it_does_not_grow_when_it_has_just_been_told_to_leave() -> None:
    nodes = [node(f"n{i}", gpus=2, used=Resources(gpus=i)) for i in range(2)]
    held = admitted(gang("e", nodes=2, sizes=(1, 2)), "n0")
    snapshot = cluster(*nodes, running=[held], queues=(queue("research", 100),))
    decisions = run(snapshot, gang("w", gpus=2, priority=5))
    assert [victim.key for victim in decisions.preemptions[0].victims] == ["training/e"]
    assert decisions.resized == ()


def test_two_that_could_grow_do_not_take_the_same_place() -> None:
    item, two = running("n0", elastic_gang=elastic("a")), running("n1", elastic_gang=elastic("b"))
    resized = run(cluster(*racks()[:3], running=[item, two])).resized
    assert [(x.key, x.added) for x in resized] == [("training/a", ("n2",))]


def test_a_small_start_preempts_for_the_smallest_size_only() -> None:
    low = [admitted(gang(f"r{i}", gpus=2), f"n{i}") for i in range(2)]
    snapshot = cluster(*racks(count=1), running=low, queues=(queue("research", 100),))
    decisions = run(snapshot, elastic(sizes=(1, 2), priority=5))
    assert [preemption.assignment for preemption in decisions.preemptions] == [("n0",)]


def test_under_the_strict_rule_it_stays_behind_as_any_other() -> None:
    held = admitted(gang("r", gpus=2), "n0")
    snapshot = cluster(*racks(), running=[held])
    decisions = run(snapshot, gang("first", nodes=4, gpus=2), elastic(queued_at=1.0), policy=STRICT)
    assert decisions.placed == ()


@pytest.mark.parametrize("sizes", [(2, 1, 4), (1, 2), (0, 4), (2, 2, 4)])
def test_sizes_have_to_ascend_to_what_is_wanted(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="sizes must ascend"):
        gang("a", nodes=4, sizes=sizes)


def test_only_an_elastic_gang_may_run_with_fewer_pods() -> None:
    assert running("n0").gpus == 2
    with pytest.raises(ValueError, match="1 places for 4 pods"):
        running("n0", elastic_gang=gang("a", nodes=4))


@pytest.mark.parametrize(("user", "grows"), [("u", False), ("v", True)])
def test_it_does_not_grow_in_front_of_its_users_job_that_waits_for_the_same_cap(
    user: str, grows: bool
) -> None:
    capped = queue("research", 99, user_limit={"h100": 6})
    mine = running("n0", elastic_gang=elastic(sizes=(1, 2), user="u"))
    busy = admitted(gang("busy", nodes=2, user=user), "n2", "n2")
    snapshot = cluster(*racks(), queues=(capped,), running=[mine, busy])
    waits = gang("waits", nodes=5, user=user)
    assert bool(run(snapshot, waits).resized) is grows
    assert run(snapshot, waits).blocked[0].reason is BlockReason.USER_LIMIT


def test_it_grows_within_its_users_cap() -> None:
    capped = queue("research", 99, user_limit={"h100": 4})
    snapshot = cluster(
        *racks(), queues=(capped,), running=[running("n0", elastic_gang=elastic(user="u"))]
    )
    assert [len(resized.added) for resized in run(snapshot).resized] == [1]
