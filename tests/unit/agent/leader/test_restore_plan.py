from __future__ import annotations

from dataclasses import replace

from drumline_agent.leader.restore_plan import (
    RestorePlan,
    newest_checkpoint_of,
    newest_common_step,
    plan_restore,
)
from drumline_agent.protocol.encoding import encode
from drumline_agent.protocol.inventory import Inventory, parse_inventory
from drumline_agent.protocol.leader_orders import CommittedCheckpoint, SnapshotSource
from drumline_agent.protocol.snapshot_info import SnapshotInfo
from tests.unit.agent.snapshot_examples import gang_on, snapshot


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


def test_the_newest_step_of_which_every_rank_is_held() -> None:
    held = [snapshot(0, 10), snapshot(1, 10), snapshot(0, 20), snapshot(1, 20), snapshot(0, 30)]
    assert newest_common_step(held, world_size=2, floor=None) == 20
    assert newest_common_step(held, world_size=2, floor=20) == 20
    assert newest_common_step(held, world_size=2, floor=21) is None, "storage has a newer one"
    assert newest_common_step(held, world_size=2, floor=None, excluded=[20]) == 10
    assert newest_common_step(held, world_size=3, floor=None) is None, "another world"
    assert newest_common_step([], world_size=1, floor=None) is None


def test_a_plan_names_a_holder_for_each_missing_snapshot() -> None:
    gang = gang_on("a", "b", "c")
    shards = [snapshot(rank, 20, world_size=3) for rank in range(3)]
    inventories = [inventory(0, shards[0], shards[2]), inventory(1, shards[1]), inventory(2)]

    chosen = plan_restore(gang, inventories, saved_step=15)
    source = SnapshotSource(holder=0, shard=shards[2])
    assert chosen == RestorePlan(restore_step=20, fetch={0: (), 1: (), 2: (source,)})
    assert chosen.fetches_any
    assert plan_restore(gang, inventories, saved_step=25) == RestorePlan(
        restore_step=None, fetch={}
    )
    assert plan_restore(gang, inventories[1:], saved_step=None).restore_step is None


def test_a_launcher_s_ranks_are_in_the_order_of_the_pods() -> None:
    gang = gang_on("a", "b")
    shards = [snapshot(rank, 20, world_size=4) for rank in range(4)]
    inventories = [inventory(0, *shards), inventory(1, shards[3])]
    chosen = plan_restore(gang, inventories, saved_step=None, ranks_per_process=2)
    source = SnapshotSource(holder=0, shard=shards[2])
    assert chosen == RestorePlan(restore_step=20, fetch={0: (), 1: (source,)})
    assert plan_restore(gang, inventories, saved_step=None).restore_step is None
    incomplete = [inventory(0, *shards[:3]), inventory(1)]
    assert plan_restore(gang, incomplete, saved_step=None, ranks_per_process=2).fetch == {}


def test_the_floor_is_the_newest_checkpoint_that_any_member_knows_of() -> None:
    saved = CommittedCheckpoint(step=20, digest="twenty")
    heard = replace(inventory(1), saved=saved)
    assert parse_inventory(encode(heard)) == heard

    known = replace(gang_on("a", "b"), restore_step=10, restore_digest="ten")
    assert newest_checkpoint_of(gang_on("a"), [inventory(0)]) is None
    assert newest_checkpoint_of(known, [inventory(0)]) == CommittedCheckpoint(step=10, digest="ten")
    assert newest_checkpoint_of(known, [inventory(0), heard]) == saved
    assert newest_checkpoint_of(replace(known, restore_step=30), [heard]) == CommittedCheckpoint(
        step=30, digest="ten"
    )
