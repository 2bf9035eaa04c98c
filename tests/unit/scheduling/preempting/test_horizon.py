"""What is kept for those who wait for others to leave, and who they are told to wait for."""

from __future__ import annotations

from drumline.scheduling import Admitted, Gang, Queue
from tests.unit.scheduling.builders import admitted, cluster, gang, node, queue, racks, run

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
            name=one.name,
            nominal={**one.nominal, "other": 100},
            parent=one.parent,
            preemption=one.preemption,
        )
        for one in queues
    )
    snapshot = cluster(*nodes, running=running, queues=both, pools=("h100", "other"))
    return {one.key: one.blockers for one in run(snapshot, *pending).blocked}


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
