from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from drumline_trainer.agent.leader.rounds import RestorePlan, newest_checkpoint_of, plan_restore
from drumline_trainer.agent.protocol.inventory import Inventory, parse_inventory
from drumline_trainer.agent.protocol.leader_orders import (
    CommittedCheckpoint,
    SnapshotSource,
    encode,
)
from drumline_trainer.agent.snapshots.catalog import (
    SnapshotCatalog,
    SnapshotInfo,
    newest_common_step,
)
from drumline_trainer.agent.snapshots.transfer import partner_of
from drumline_trainer.contract import ContractError, GenerationRecord, Member


def shard(rank: int, step: int, *, world_size: int = 2) -> SnapshotInfo:
    return SnapshotInfo(
        rank=rank,
        step=step,
        generation=1,
        attempt=0,
        world_size=world_size,
        bytes=3,
        sha256="d",
    )


def record(*nodes: str, ranks: int = 1) -> GenerationRecord:
    members = tuple(
        Member(
            index=i, pod_uid=f"p{i}", address=f"10.0.0.{i}", host=f"h{i}", ranks=ranks, node=node
        )
        for i, node in enumerate(nodes)
    )
    return GenerationRecord(job_uid="job", generation=1, epoch=1, members=members)


def inventory(index: int, *shards: SnapshotInfo) -> Inventory:
    return Inventory(
        index=index,
        previous_generation=1,
        broken=None,
        step=9,
        saved=None,
        shards=shards,
        incidents=(),
    )


def arrive(snapshots: SnapshotCatalog, one: SnapshotInfo) -> Path:
    path = snapshots.incoming_path(one, copy=True)
    path.write_bytes(b"abc")
    snapshots.commit_incoming(one, copy=True)
    return path.with_suffix(".snapshot")


def test_a_description_survives_the_wire() -> None:
    assert SnapshotInfo.from_json(shard(1, 42).to_json()) == shard(1, 42)
    with pytest.raises(ContractError, match="world_size"):
        SnapshotInfo.parse({"rank": 0, "step": 1, "generation": 1, "attempt": 0, "world_size": 0})


def test_of_each_rank_the_two_newest_are_held(tmp_path: Path) -> None:
    snapshots = SnapshotCatalog(tmp_path)
    files = [arrive(snapshots, shard(1, step)) for step in (10, 20, 30)]

    assert [one.step for one in snapshots.all] == [30, 20]
    assert [file.exists() for file in files] == [False, True, True]
    found = snapshots.find(1, 20)
    assert found == (shard(1, 20), files[1])
    assert (snapshots.find(1, 10), snapshots.find(0, 20)) == (None, None)
    assert not snapshots.path(1, 20).exists(), "a copy is not where the rank would look for it"


def test_going_back_drops_what_is_newer_and_what_does_not_fit(tmp_path: Path) -> None:
    snapshots = SnapshotCatalog(tmp_path)
    kept, newer = arrive(snapshots, shard(1, 10)), arrive(snapshots, shard(1, 20))
    snapshots.add_own(shard(0, 20))
    snapshots.keep_history(10, world_size=2)
    assert snapshots.all == (shard(1, 10),)
    assert (kept.exists(), newer.exists()) == (True, False)

    snapshots.keep_history(10, world_size=4)
    assert snapshots.all == ()
    arrive(snapshots, shard(1, 10))
    snapshots.keep_history(None, world_size=2)
    assert snapshots.all == ()


def test_the_newest_step_that_somebody_holds_of_every_rank() -> None:
    held = [shard(0, 10), shard(1, 10), shard(0, 20), shard(1, 20), shard(0, 30)]
    assert newest_common_step(held, world_size=2, floor=None) == 20
    assert newest_common_step(held, world_size=2, floor=20) == 20
    assert newest_common_step(held, world_size=2, floor=21) is None, "storage has a newer one"
    assert newest_common_step(held, world_size=2, floor=None, refused=[20]) == 10
    assert newest_common_step(held, world_size=3, floor=None) is None, "another world"
    assert newest_common_step([], world_size=1, floor=None) is None


def test_a_plan_says_who_gets_what_from_whom() -> None:
    gang = record("a", "b", "c")
    shards = [shard(rank, 20, world_size=3) for rank in range(3)]
    inventories = [inventory(0, shards[0], shards[2]), inventory(1, shards[1]), inventory(2)]

    chosen = plan_restore(gang, inventories, saved_step=15)
    source = SnapshotSource(holder=0, shard=shards[2])
    assert chosen == RestorePlan(restore_step=20, fetch={0: (), 1: (), 2: (source,)})
    assert chosen.fetches_any
    assert plan_restore(gang, inventories, saved_step=25) == RestorePlan(
        restore_step=None, fetch={}
    )
    assert plan_restore(gang, inventories[1:], saved_step=None).restore_step is None


def test_the_floor_is_the_newest_checkpoint_that_anybody_knows_of() -> None:
    saved = CommittedCheckpoint(step=20, digest="twenty")
    heard = replace(inventory(1), saved=saved)
    assert parse_inventory(encode(heard)) == heard

    known = replace(record("a", "b"), restore_step=10, restore_digest="ten")
    assert newest_checkpoint_of(record("a"), [inventory(0)]) is None
    assert newest_checkpoint_of(known, [inventory(0)]) == CommittedCheckpoint(step=10, digest="ten")
    assert newest_checkpoint_of(known, [inventory(0), heard]) == saved
    assert newest_checkpoint_of(replace(known, restore_step=30), [heard]) == CommittedCheckpoint(
        step=30, digest="ten"
    )


@pytest.mark.parametrize(
    ("nodes", "partners"),
    [
        ("ab", [1, 0]),
        ("abc", [1, 2, 0]),
        ("aab", [2, 2, 0]),
        ("aa", [None, None]),
        ("a", [None]),
    ],
)
def test_the_partner_is_the_next_member_on_another_node(
    nodes: str, partners: list[int | None]
) -> None:
    gang = record(*nodes)
    found = [partner_of(gang, index) for index in range(len(nodes))]
    assert [None if one is None else one.index for one in found] == partners


def test_indices_need_not_be_without_gaps() -> None:
    gang = record("a", "b", "c")
    shrunk = replace(gang, members=(gang.members[0], gang.members[2]))
    partner = partner_of(shrunk, 2)
    assert partner is not None
    assert partner.index == 0
