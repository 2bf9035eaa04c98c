from __future__ import annotations

import pytest

from drumline_agent.protocol.snapshot_info import SnapshotInfo
from drumline_contract import ContractError
from tests.unit.agent.snapshot_examples import snapshot


def test_a_description_survives_the_wire() -> None:
    assert SnapshotInfo.from_json(snapshot(1, 42).to_json()) == snapshot(1, 42)
    with pytest.raises(ContractError, match="world_size"):
        SnapshotInfo.parse({"rank": 0, "step": 1, "generation": 1, "attempt": 0, "world_size": 0})
