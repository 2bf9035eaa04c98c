from __future__ import annotations

from pathlib import Path

import pytest

from drumline_agent.rank_protocol.placement import Placement
from drumline_client.snapshot_file import SnapshotHeader, write_snapshot
from drumline_contract.shapes.partition import StageCosts
from drumline_trainer.assembly.stage_plan import next_partition, partition_of, saved_boundaries

STATE = {"stages": {"now": [2, 4], "next": [1, 4]}}
HALVES = (range(2), range(2, 4))


def placement(folder: Path | None, *, restore: int | None = None) -> Placement:
    return Placement(
        rank=0,
        world_size=2,
        local_rank=0,
        local_world_size=2,
        store_port=1,
        snapshot_folder=folder,
        restore_snapshot=restore,
    )


def test_a_run_that_goes_on_from_memory_keeps_its_stages(tmp_path: Path) -> None:
    header = SnapshotHeader(
        rank=0,
        step=5,
        world_size=2,
        generation=1,
        attempt=0,
        config="",
        trainer=STATE,
        body_bytes=0,
        sha256="",
    )
    write_snapshot(tmp_path, header, [])
    assert saved_boundaries(placement(tmp_path, restore=5)) == [2, 4]
    assert saved_boundaries(placement(tmp_path, restore=7)) == []
    assert saved_boundaries(placement(tmp_path)) == []


def test_stages_stay_until_all_have_been_measured_and_one_is_much_slower() -> None:
    costs = StageCosts(layers=(1.0,) * 4)
    assert next_partition(HALVES, costs, seconds=[3.0, 0.0]) == HALVES
    assert next_partition(HALVES, costs, seconds=[1.02, 1.0]) == HALVES
    assert next_partition(HALVES, costs, seconds=[3.0, 1.0]) == (range(1), range(1, 4))


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([2, 4], HALVES),
        ([], None),
        ([4], None),
        ([2, 5], None),
        ([0, 4], None),
        ([1, 2, 4], None),
    ],
)
def test_ends_of_another_model_or_pipeline_are_no_partition(
    ends: list[int], expected: tuple[range, ...] | None
) -> None:
    assert partition_of(ends, stages=2, layers=4) == expected
