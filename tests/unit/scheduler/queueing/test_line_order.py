"""The line of waiting gangs: skipped gangs stand where they would have their turn."""

from __future__ import annotations

from dataclasses import replace

from drumline_scheduler import Gang, Snapshot
from drumline_scheduler.queueing.line_order import line_of
from tests.unit.scheduler.builders import admitted, cluster, gang, queue, racks, run

FULL = [admitted(gang("held", nodes=4, gpus=2), "n0", "n1", "n2", "n3")]


def line(snapshot: Snapshot, *pending: Gang) -> str:
    decisions = run(snapshot, *pending)
    gangs = line_of(pending, order=decisions.order, considered=decisions.considered)
    return " ".join(each.key.removeprefix("training/") for each in gangs)


def test_skipped_gangs_stand_before_those_that_came_later() -> None:
    pending = [gang("b", nodes=2, at=3.5), *(gang(f"a{i}", at=i) for i in range(6))]
    assert line(cluster(*racks(), running=FULL), *pending) == "a0 a1 a2 a3 b a4 a5"


def test_a_queue_that_borrows_has_its_turn_after_one_that_does_not() -> None:
    """The gangs of x came first, but borrow: all of them stand behind y's first ones."""
    queues = (queue("org"), queue("x", parent="org"), queue("y", 8, parent="org"))
    full = [replace(FULL[0], gang=replace(FULL[0].gang, queue="other"))]
    snapshot = cluster(*racks(), running=full, queues=(*queues, queue("other", 8)))
    pending = [gang(f"x{i}", queue="x", at=i) for i in range(3)]
    pending += [gang(f"y{i}", queue="y", at=10 + i) for i in range(3)]
    assert line(snapshot, *pending).startswith("y0 x0")


def test_a_gang_with_kept_places_lets_nobody_before_it_into_the_line() -> None:
    kept = gang("kept", at=9, nominated=("n0",), nominated_pool="h100")
    pending = [gang(f"a{i}", nodes=2, at=i) for i in range(3)]
    leaves = [replace(FULL[0], leaving=True)]
    assert line(cluster(*racks(), running=leaves), *pending, kept) == "kept a0 a1 a2"
    assert line(cluster(*racks(), running=FULL), *pending, kept) == "a0 a1 a2 kept"
