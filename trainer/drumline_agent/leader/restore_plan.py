"""Which step a gang restores, and which snapshots its members have to fetch for that; pure.

The newest step of which the members together hold a snapshot of every rank, unless storage has a
newer checkpoint. Example with two members of one rank each, storage at step 40:

    member 0 holds rank 0 at 44, 42 and a copy of rank 1 at 42
    member 1 is new and holds nothing
    -> restore step 42; member 1 fetches rank 1 of step 42 from member 0
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from drumline_agent.protocol.inventory import Inventory
from drumline_agent.protocol.leader_orders import CommittedCheckpoint, SnapshotSource
from drumline_agent.protocol.snapshot_info import SnapshotInfo
from drumline_contract import GenerationRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """Where a gang restores from."""

    restore_step: int | None
    """Step of the snapshots; None: the newest checkpoint, or the initial weights."""
    fetch: dict[int, tuple[SnapshotSource, ...]]
    """By member index: the snapshots that it lacks."""

    @property
    def fetches_any(self) -> bool:
        """Whether any member fetches a snapshot."""
        return any(self.fetch.values())


def plan_restore(
    record: GenerationRecord,
    inventories: Sequence[Inventory],
    *,
    saved_step: int | None,
    excluded: Iterable[int] = (),
    ranks_per_process: int = 1,
) -> RestorePlan:
    """Plan the restore of a gang.

    Args:
        record: the gang.
        inventories: of all its members.
        saved_step: newest step known to be on storage.
        excluded: steps that could not be restored before.
        ranks_per_process: a launcher's, which it starts in the order of the pods.
    """
    snapshots = {
        (snapshot.rank, snapshot.step, inventory.index): snapshot
        for inventory in inventories
        for snapshot in inventory.shards
    }
    step = newest_common_step(
        snapshots.values(),
        world_size=record.world_size * ranks_per_process,
        floor=saved_step,
        excluded=excluded,
    )
    if step is None:
        return RestorePlan(restore_step=None, fetch={})
    holders: dict[int, list[int]] = {}
    for rank, at_step, index in sorted(snapshots):
        if at_step == step:
            holders.setdefault(rank, []).append(index)
    fetch: dict[int, tuple[SnapshotSource, ...]] = {}
    for member in record.members:
        first = record.first_rank(member.index) * ranks_per_process
        fetch[member.index] = tuple(
            SnapshotSource(holder=holders[rank][0], shard=snapshots[rank, step, holders[rank][0]])
            for rank in range(first, first + member.ranks * ranks_per_process)
            if member.index not in holders[rank]
        )
    return RestorePlan(restore_step=step, fetch=fetch)


def newest_common_step(
    snapshots: Iterable[SnapshotInfo],
    *,
    world_size: int,
    floor: int | None,
    excluded: Iterable[int] = (),
) -> int | None:
    """The newest step of which a snapshot of every rank is held; None where there is none.

    Args:
        snapshots: everything that the members of the gang hold.
        world_size: only snapshots of a gang of this size fit.
        floor: storage has this step: restoring an older one would lose more than it saves.
        excluded: steps that could not be restored before.
    """
    ranks_by_step: dict[int, set[int]] = {}
    for snapshot in snapshots:
        if snapshot.world_size == world_size and snapshot.step >= (floor or 0):
            ranks_by_step.setdefault(snapshot.step, set()).add(snapshot.rank)
    complete = {step for step, ranks in ranks_by_step.items() if len(ranks) == world_size}
    return max(complete - set(excluded), default=None)


def newest_checkpoint_of(
    record: GenerationRecord, inventories: Iterable[Inventory]
) -> CommittedCheckpoint | None:
    """The newest checkpoint known to the operator, which may be late, or to a member."""
    known = [inventory.saved for inventory in inventories if inventory.saved is not None]
    if record.restore_step is not None:
        checkpoint = CommittedCheckpoint(step=record.restore_step, digest=record.restore_digest)
        known.insert(0, checkpoint)
    return max(known, key=lambda checkpoint: checkpoint.step, default=None)
