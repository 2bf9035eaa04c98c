"""What is kept for those who wait for others to leave, and who they are told to wait for."""

from __future__ import annotations

import pytest

from drumline_scheduler import Admitted, BlockReason, Gang, Queue, Role
from drumline_scheduler.placement.projection import Nomination
from tests.unit.scheduler.builders import admitted, cluster, gang, node, pod, queue, racks, run

ALONE = (queue("research", 100),)


def leaver(name: str, place: str, *, pool: str = "h100") -> Admitted:
    return admitted(gang(name, gpus=2), place, pool=pool, leaving=True)


def nominee(name: str, *places: str, **changes: object) -> Gang:
    return gang(
        name, nodes=len(places), gpus=2, priority=5, nominated=places, nominated_pool="h100",
        **changes,
    )  # fmt: skip


def blockers(*pending: Gang, running: list[Admitted], queues: tuple[Queue, ...] = ALONE) -> object:
    nodes = (*racks(count=1), node("o", "rack-9", pool="other"))
    both = tuple(
        Queue(
            name=each_queue.name,
            nominal={**each_queue.nominal, "other": 100},
            parent=each_queue.parent,
            preemption=each_queue.preemption,
        )
        for each_queue in queues
    )
    snapshot = cluster(*nodes, running=running, queues=both, pools=("h100", "other"))
    return {item.key: item.blockers for item in run(snapshot, *pending).blocked}


def test_a_promise_counts_the_pods_of_roles_beside_the_main_ones() -> None:
    gang_a = gang("a", nodes=2, gpus=2, roles=(Role(name="launcher", pods=1, per_pod=pod(1)),))
    kept = Nomination(gang=gang_a, pool="h100", nodes=("n0", "n0", "n1"))
    assert (kept.size, kept.gpus) == (2, 5)


def test_who_waits_is_told_those_who_leave_its_own_places() -> None:
    running = [leaver("r0", "n0"), leaver("r1", "n1"), leaver("r2", "o", pool="other")]
    assert blockers(nominee("x", "n0"), nominee("y", "n1", at=1.0), running=running) == {
        "training/x": ("training/r0",),
        "training/y": ("training/r1",),
    }


def test_where_nobody_is_left_on_them_it_waits_for_the_quota_of_those_who_leave_the_pool() -> None:
    running = [leaver("r1", "n1"), leaver("r2", "o", pool="other")]
    full = (queue("research", 2),)
    assert blockers(nominee("x", "n0"), running=running, queues=full) == {
        "training/x": ("training/r1",)
    }


def test_what_those_who_leave_already_free_counts_beside_a_victim() -> None:
    """It may send `low` away; the place of `going`, who is of higher priority, comes of itself."""
    running = [
        admitted(gang("going", gpus=2, priority=9), "n0", leaving=True),
        admitted(gang("low", gpus=2), "n1"),
    ]
    snapshot = cluster(*racks(count=1), running=running, queues=ALONE)
    decisions = run(snapshot, gang("x", nodes=2, gpus=2, priority=5))
    assert [victim.key for victim in decisions.preemptions[0].victims] == ["training/low"]
    assert decisions.blocked[0].blockers == ("training/going", "training/low")


def test_what_pods_free_that_are_being_deleted_counts_beside_a_victim() -> None:
    ending = pod(2)
    nodes = (node("n0", "rack-0", used=ending, terminating=ending), node("n1", "rack-0"))
    snapshot = cluster(*nodes, running=[admitted(gang("low", gpus=2), "n1")], queues=ALONE)
    decisions = run(snapshot, gang("x", nodes=2, gpus=2, priority=5))
    assert [victim.key for victim in decisions.preemptions[0].victims] == ["training/low"]


@pytest.mark.parametrize(("quota", "grows"), [(8, False), (10, True)])
def test_nobody_grows_into_the_quota_that_is_kept_for_one_who_waits(
    *, quota: int, grows: bool
) -> None:
    """Now 4 GPUs of 8 are held; but the one who waits will hold 2 more than who leaves for it."""
    running = [
        admitted(gang("going", gpus=2), "n0", leaving=True),
        admitted(gang("e", nodes=3, gpus=2, sizes=(1, 3)), "n1"),
    ]
    nodes = (*racks(count=1, gpus=4), node("n2", "rack-0"))
    snapshot = cluster(*nodes, running=running, queues=(queue("research", quota),))
    waits = gang("x", gpus=4, priority=5, nominated=("n0",), nominated_pool="h100")
    assert bool(run(snapshot, waits).resized) is grows


@pytest.mark.parametrize(("quota", "placed"), [(8, []), (10, ["training/late"])])
def test_nobody_starts_with_the_quota_that_is_kept_for_one_who_waits(
    quota: int, placed: list[str]
) -> None:
    """Now 2 GPUs of 8 are held, soon 4: the 6 that are asked for are free only now."""
    going = admitted(gang("going", gpus=2), "n0", leaving=True)
    nodes = (node("n0", "rack-0", gpus=4), *(node(f"s{i}", "rack-0") for i in range(3)))
    snapshot = cluster(*nodes, running=[going], queues=(queue("research", quota),))
    waits = gang("x", gpus=4, priority=5, nominated=("n0",), nominated_pool="h100")
    decisions = run(snapshot, waits, gang("late", nodes=3, gpus=2, at=1.0))
    assert [item.key for item in decisions.placed] == placed
    reasons = {rejection.key: rejection.reason for rejection in decisions.blocked}
    assert (reasons.get("training/late") is BlockReason.QUOTA_EXHAUSTED) is not bool(placed)


def test_one_that_was_to_move_to_a_node_that_is_gone_is_in_the_way_again() -> None:
    """The first whose leaving would help is named, the one of lower priority: it leaves no more."""
    mover = admitted(gang("m", gpus=2), "n0", leaving=True, nominated={0: "gone"})
    other = admitted(gang("r", gpus=2, priority=1), "n1")
    snapshot = cluster(*racks(count=1), running=[mover, other])
    assert run(snapshot, gang("x", gpus=2)).blocked[0].blockers == ("training/m",)


def test_a_mover_that_stays_does_not_hide_those_who_leave() -> None:
    mover = admitted(gang("m", gpus=2, priority=9), "n0", leaving=True, nominated={0: "gone"})
    snapshot = cluster(*racks(count=1), running=[mover, leaver("r1", "n1")], queues=ALONE)
    decisions = run(snapshot, nominee("x", "n1"))
    assert decisions.stay == ("uid-m",)
    assert decisions.blocked[0].blockers == ("training/r1",)


def test_pods_that_are_being_deleted_on_all_nodes_count_beside_a_victim() -> None:
    nodes = (
        node("n0", "rack-0", used=pod(2), terminating=pod(2)),
        node("n1", "rack-0", gpus=3, used=pod(1), terminating=pod(1)),
    )
    snapshot = cluster(*nodes, running=[admitted(gang("low", gpus=2), "n1")], queues=ALONE)
    decisions = run(snapshot, gang("x", nodes=2, gpus=2, priority=5))
    assert [victim.key for victim in decisions.preemptions[0].victims] == ["training/low"]


def test_the_nodes_of_roles_are_kept_too_for_a_gang_that_waits() -> None:
    """`late` would fit where the launcher is to run."""
    roles = (Role(name="launcher", pods=1, per_pod=pod(2)),)
    waits = gang(
        "x", gpus=2, priority=5, roles=roles, nominated=("n0", "n1"), nominated_pool="h100"
    )
    snapshot = cluster(*racks(count=1), running=[leaver("r0", "n0")], queues=ALONE)
    assert not run(snapshot, waits, gang("late", gpus=2, at=1.0)).placed
