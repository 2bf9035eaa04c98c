"""New gangs enter the line by their fields, namespace by namespace."""

from __future__ import annotations

from drumline_scheduler import Gang
from drumline_scheduler.queueing.arrivals import NEW_FIELDS, Arrivals, fields_of
from tests.unit.scheduler.builders import gang, pod

RESOURCES = tuple((f"e{index}.com/x", 1) for index in range(60))


def heavy(index: int, **changes: object) -> Gang:
    selector = {f"k{number}": "x" for number in range(120)}
    return gang(
        f"h{index:04}", selector=selector, per_pod=pod(1, extended=RESOURCES), at=index, **changes
    )


def test_ordinary_gangs_enter_at_once() -> None:
    arrivals, pending = Arrivals(), [gang(f"g{index}") for index in range(5000)]
    assert list(arrivals.let_in(pending)) == pending
    assert arrivals.is_complete


def test_heavy_gangs_enter_cycle_by_cycle_and_others_are_not_delayed() -> None:
    arrivals, pending = Arrivals(), [heavy(index) for index in range(400)]
    modest = gang("modest", key="other/modest")
    most = NEW_FIELDS // fields_of(pending[0]) + 1
    for cycle in range(1, 6):
        line = arrivals.let_in([*pending, modest])
        assert modest in line
        assert len(line) == min(cycle * most, 400) + 1
        assert arrivals.is_complete == (len(line) == 401)


def test_a_gang_in_line_stays_there_and_one_that_left_enters_again() -> None:
    arrivals, pending = Arrivals(), [heavy(index) for index in range(400)]
    first = list(arrivals.let_in(pending))
    assert list(arrivals.let_in(pending))[: len(first)] == first
    assert not arrivals.let_in([])
    assert list(arrivals.let_in(pending)) == first


def test_a_group_enters_together() -> None:
    arrivals = Arrivals()
    pending = [heavy(index, group=f"g{index // 50}", group_gangs=50) for index in range(400)]
    line = arrivals.let_in(pending)
    assert len(line) % 50 == 0
    assert 0 < len(line) < 400
