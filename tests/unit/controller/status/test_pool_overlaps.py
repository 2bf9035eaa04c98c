"""What two pools say that select the same nodes."""

from __future__ import annotations

from msgspec import structs

from drumline.controller.status.pool_overlaps import overlap_fields, overlap_of
from tests.unit.controller.views import pool_view

CONTESTED = {f"n{index}": ("old", "new") for index in range(5)} | {"x": ("third", "old")}


def test_both_pools_name_the_other_one_the_nodes_and_who_has_them() -> None:
    for pool, other in (("new", "old"), ("old", "new")):
        said = overlap_of(pool, contested=CONTESTED)
        assert said is not None
        assert (said.truth, said.reason) == ("True", "NodesOverlap")
        nodes = f"GpuPool {other} selects n0, n1, n2 and 2 more too; old has them"
        assert nodes in said.message
        assert said.message.endswith("narrow the nodeSelector of one of them")
    said = overlap_of("old", contested=CONTESTED)
    assert said is not None
    assert "GpuPool third selects x too; third has them" in said.message


def test_a_pool_of_its_own_nodes_says_nothing() -> None:
    assert overlap_of("fourth", contested=CONTESTED) is None


def test_the_condition_keeps_its_time_and_goes_with_the_overlap() -> None:
    first = overlap_fields(pool_view("new"), contested=CONTESTED, now=1_800_000_000.0)
    (condition,) = first["conditions"]
    assert (condition["type"], condition["status"]) == ("Overlapping", "True")
    stored = structs.replace(pool_view("new"), status=first)
    assert overlap_fields(stored, contested=CONTESTED, now=1_800_000_900.0) == first
    assert overlap_fields(stored, contested={}, now=1_800_000_900.0) == {}
