from __future__ import annotations

from pathlib import Path

import pytest

from drumline_agent.rank_protocol.placement import Placement


def test_survives_a_line_of_json() -> None:
    full = Placement(
        rank=3,
        world_size=4,
        local_rank=1,
        local_world_size=2,
        store_host="10.0.0.7",
        store_port=29501,
        owner="11111111-2222",
        generation=4,
        attempt=2,
        checkpoint_folder=Path("/checkpoints/job"),
        acknowledged_step=50,
        acknowledged_digest="ab",
        snapshot_folder=Path("/memory/job"),
        restore_snapshot=42,
        address="10.0.0.8",
    )
    assert Placement.from_json(full.to_json()) == full
    least = Placement(rank=0, world_size=1)
    assert Placement.from_json(least.to_json()) == least


def test_memberships_order_by_generation_then_attempt() -> None:
    def membership(generation: int, attempt: int) -> tuple[int, int]:
        place = Placement(rank=0, world_size=1, generation=generation, attempt=attempt)
        return place.membership

    assert membership(1, 9) < membership(2, 0) < membership(2, 1)
    assert membership(0, 7) == membership(0, 0)  # nobody counts those attempts


@pytest.mark.parametrize("values", [{"rank": 2}, {"rank": -1}, {"rank": 0, "local_rank": 1}])
def test_a_rank_outside_its_world_is_refused(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="is outside"):
        Placement(world_size=2, **values)
