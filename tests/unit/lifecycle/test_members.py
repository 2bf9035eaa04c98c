"""Members of a gang, unfolded from an assignment and folded again."""

from __future__ import annotations

import json

import pytest

from drumline.lifecycle.model.members import (
    GangMember,
    assignment_of,
    lost_positions,
    members_of,
    pool_nodes,
    resized_members,
    with_new_nodes,
    with_new_pods,
)
from drumline_api.jobstatus import TrainingJobStatus


def member(index: int, *, node: str | None = None, birth: int = 1) -> GangMember:
    return GangMember(index=index, node=node or f"node-{index}", pod_generation=birth)


def status_of(*members: GangMember, **rest: tuple[int, ...]) -> TrainingJobStatus:
    return TrainingJobStatus(generation=9, assignment=assignment_of("h100", members, **rest))


@pytest.mark.parametrize(
    "members",
    [
        (member(0),),
        (member(0), member(1), member(2)),
        (member(0), member(1, birth=4), member(2)),
        (member(0, birth=5), member(1, birth=4), member(2, birth=4), member(3, birth=6)),
        (member(1), member(2), member(4, birth=3)),
        (member(7),),
    ],
)
def test_an_assignment_holds_its_members_without_loss(members: tuple[GangMember, ...]) -> None:
    status = status_of(*members)
    assert members_of(status) == members
    assert members_of(TrainingJobStatus.model_validate_json(status.model_dump_json())) == members


def test_births_are_written_once_and_exceptions_by_generation() -> None:
    births = (2, 2, 5, 2, 5, 4)
    assignment = assignment_of("h100", [member(i, birth=b) for i, b in enumerate(births)])
    assert assignment.generation == 2
    assert [(r.generation, r.indices) for r in assignment.replaced or ()] == [(4, [5]), (5, [2, 4])]


def test_a_gang_that_shrank_names_the_indices_between_that_are_absent() -> None:
    assert assignment_of("h100", [member(0), member(3)]).absent == [1, 2]
    assert assignment_of("h100", [member(0), member(1)]).absent is None


def test_an_assignment_of_an_earlier_version_was_born_with_its_generation() -> None:
    status = TrainingJobStatus(generation=3, assignment=assignment_of("h100", [member(0)]))
    assert status.assignment is not None
    old = status.assignment.model_copy(update={"generation": None})
    assert members_of(status.model_copy(update={"assignment": old})) == (member(0, birth=3),)


def test_lost_members_are_known_by_position() -> None:
    status = status_of(member(0), member(2), member(5), lost=(5, 0))
    assert lost_positions(status) == {0, 2}
    assert lost_positions(TrainingJobStatus()) == frozenset()


def test_members_get_new_pods_new_nodes_and_new_sizes() -> None:
    gang = [member(0), member(2), member(3)]
    assert with_new_pods(gang, {2}, pod_generation=4) == [member(0), member(2, birth=4), member(3)]
    places = ["node-0", "spare", "node-3"]
    assert with_new_nodes(gang, places, {1}, pod_generation=4) == [
        member(0),
        member(2, node="spare", birth=4),
        member(3),
    ]
    assert resized_members(gang, kept={0, 2}, added=(), pod_generation=4) == [member(0), member(3)]
    assert resized_members(gang, kept={0, 1, 2}, added=("x", "y"), pod_generation=4) == [
        member(0),
        member(1, node="x", birth=4),
        member(2),
        member(3),
        member(4, node="y", birth=4),
    ]


@pytest.mark.parametrize(
    "nodes",
    [["gpu-a"], ["gpu-a", "gpu-b"], ["a", "b"], ["rack-1-n10", "rack-1-n1", "rack-1-n10"], ["x"]],
)
def test_places_are_compressed_without_loss(nodes: list[str]) -> None:
    places = pool_nodes("h100", nodes)
    assert places.node_names() == tuple(nodes)
    assert places.gpu_pool == "h100"
    assert len(json.dumps(places.nodes)) <= len(json.dumps(nodes))


def test_five_thousand_members_with_many_births_stay_far_below_256_kib() -> None:
    members = [member(i, node=f"gpu-pool-a-{i:05}", birth=1 + i % 7) for i in range(5000)]
    status = status_of(*members, lost=tuple(range(0, 5000, 3)))
    text = status.model_dump_json(by_alias=True, exclude_none=True)
    assert len(text) < 120 * 1024
