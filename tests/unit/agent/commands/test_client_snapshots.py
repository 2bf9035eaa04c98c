from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_agent.commands.pod_clients import snapshot_info
from drumline_agent.protocol.snapshot_info import MAX_SNAPSHOT_BYTES, SnapshotInfo
from drumline_agent.rank_protocol.placement import Placement
from drumline_client.wire import SnapshotWritten

PLACEMENT = Placement(rank=3, world_size=4, generation=2, attempt=1)
WRITTEN = SnapshotWritten(step=40, bytes=100, sha256="0f" * 32, seconds=0.1)


def test_what_a_client_says_is_of_its_rank_and_membership() -> None:
    assert snapshot_info(WRITTEN, PLACEMENT, rank=3) == SnapshotInfo(
        rank=3,
        step=40,
        generation=2,
        attempt=1,
        world_size=4,
        bytes=100,
        sha256="0f" * 32,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1},
        {"bytes": 0},
        {"bytes": MAX_SNAPSHOT_BYTES + 1},
        {"sha256": "0f" * 31},
        {"sha256": "../" + "0" * 61},
    ],
)
def test_what_cannot_be_right_is_no_snapshot(changes: dict[str, Any]) -> None:
    assert snapshot_info(replace(WRITTEN, **changes), PLACEMENT, rank=3) is None


def test_a_launcher_s_rank_is_among_all_that_launchers_start() -> None:
    info = snapshot_info(WRITTEN, PLACEMENT, rank=7, ranks_per_process=2)
    assert info is not None
    assert (info.rank, info.world_size, info.membership) == (7, 8, (2, 1))
