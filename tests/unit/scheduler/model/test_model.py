"""The values reject what would make a cycle count wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import Pool, Queue, Resources, Snapshot
from tests.unit.scheduler.builders import admitted, cluster, gang, node, racks


def test_amounts_add_up_and_have_one_form() -> None:
    a = Resources(gpus=2, cpu_millis=500, extended=(("x", 1), ("b", 2)))
    b = Resources(gpus=1, memory_bytes=7, extended=(("x", -1), ("c", 3)))
    assert a + b == Resources(gpus=3, cpu_millis=500, memory_bytes=7, extended=(("b", 2), ("c", 3)))
    assert a - a == Resources()
    assert a.times(3) == a + a + a
    assert a.amounts() == {"gpus": 2, "cpu_millis": 500, "b": 2, "x": 1}


def test_only_what_is_asked_for_has_to_fit() -> None:
    free = Resources(gpus=1, cpu_millis=-5, extended=(("x", 1),))
    assert Resources(gpus=1, extended=(("x", 1),)).fits_in(free)
    assert not Resources(gpus=2).fits_in(free)
    assert not Resources(cpu_millis=1).fits_in(free)
    assert not Resources(extended=(("y", 1),)).fits_in(free)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": 0}, "nodes must be at least 1, not 0"),
        ({"per_pod": Resources(gpus=1)}, "per_pod must ask for 1 pod slot"),
        ({"per_pod": Resources(gpus=-1, pods=1)}, "nothing negative"),
        ({"per_pod": Resources(pods=1, extended=(("x", -1),))}, "nothing negative"),
    ],
)
def test_a_gang_that_no_admission_may_count_is_refused(
    changes: dict[str, int | Resources], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        replace(gang("a"), **changes)  # pyright: ignore[reportArgumentType] - any one field


def test_an_assignment_has_the_size_of_its_gang() -> None:
    with pytest.raises(ValueError, match="training/a: 1 places for 2 pods"):
        admitted(gang("a", nodes=2), "n0")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": (node("n0"), node("n0", "rack-1"))}, "node n0"),
        ({"pools": (Pool(name="p"), Pool(name="p", levels=("rack",)))}, "pool p"),
        ({"queues": (Queue(name="q", nominal={}),) * 2}, "queue q"),
        ({"admitted": (admitted(gang("a"), "n0"),) * 2}, "admitted job uid-a"),
    ],
)
def test_two_things_of_one_name_are_refused(
    changes: dict[str, tuple[object, ...]], words: str
) -> None:
    snapshot: Snapshot = cluster(*racks())
    with pytest.raises(ValueError, match=f"{words} is in the snapshot twice"):
        replace(snapshot, **changes)  # pyright: ignore[reportArgumentType] - any one field


def test_a_gang_knows_its_namespace_and_what_its_queue_pays() -> None:
    item = gang("a", nodes=3, gpus=2)
    assert (item.namespace, item.gpus) == ("training", 6)
