from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_agent.snapshots.replication import peer_of
from tests.unit.agent.snapshot_examples import gang_on


@pytest.mark.parametrize(
    ("nodes", "peers"),
    [
        ("ab", [1, 0]),
        ("abc", [1, 2, 0]),
        ("aab", [2, 2, 0]),
        ("aa", [None, None]),
        ("a", [None]),
    ],
)
def test_the_peer_is_the_next_member_on_another_node(nodes: str, peers: list[int | None]) -> None:
    gang = gang_on(*nodes)
    chosen = [peer_of(gang, index) for index in range(len(nodes))]
    assert [None if peer is None else peer.index for peer in chosen] == peers


def test_indices_need_not_be_without_gaps() -> None:
    gang = gang_on("a", "b", "c")
    shrunk = replace(gang, members=(gang.members[0], gang.members[2]))
    peer = peer_of(shrunk, 2)
    assert peer is not None
    assert peer.index == 0
