"""What two pools say that select the same nodes."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from drumline.controller.pools.overlaps import overlap_of
from drumline.controller.usage.platform_conditions import of_pool, status_fields
from drumline.kube.views import ObjectView
from drumline.lifecycle.model.conditions import Statement
from tests.texts import missing
from tests.unit.controller.views import pool_view

CONTESTED = {f"n{index}": ("old", "new") for index in range(5)} | {"x": ("third", "old")}


def test_both_pools_name_the_other_one_the_nodes_and_who_has_them() -> None:
    for pool, other in (("new", "old"), ("old", "new")):
        said = overlap_of(pool, contested=CONTESTED)
        assert said is not None
        assert (said.truth, said.reason) == ("True", "NodesOverlap")
        nodes = f"GpuPool {other} selects n0, n1, n2 and 2 more too; old has them"
        assert nodes in said.message
        assert not missing(said.message, "nodeSelector")
    said = overlap_of("old", contested=CONTESTED)
    assert said is not None
    assert not missing(said.message, "GpuPool")


def test_a_pool_of_its_own_nodes_says_nothing() -> None:
    assert overlap_of("fourth", contested=CONTESTED) is None


def test_the_condition_keeps_its_time_and_goes_with_the_overlap() -> None:
    def fields(view: ObjectView, now: float, overlap: Statement | None) -> dict[str, Any]:
        return status_fields(view, of_pool(problem=None, nodes=[], overlap=overlap), now=now)

    overlap = overlap_of("new", contested=CONTESTED)
    first = fields(pool_view("new"), 1_800_000_000.0, overlap)
    assert [entry["type"] for entry in first["conditions"]] == ["Overlapping", "Ready"]
    stored = structs.replace(pool_view("new"), status=first)
    assert fields(stored, 1_800_000_900.0, overlap) == first
    after = fields(stored, 1_800_000_900.0, None)
    assert [entry["type"] for entry in after["conditions"]] == ["Ready"]
