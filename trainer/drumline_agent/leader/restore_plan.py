"""Choice of the step that a gang restores, and of the snapshots that members must fetch; pure.

The step is the newest for which the members together hold a snapshot of every rank, unless storage
has a newer checkpoint. Example with two members of one rank each, storage at step 40:

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
    """Source of a gang's restored state."""

    restore_step: int | None
    """Step of the snapshots; None: the newest checkpoint, or the initial weights."""
    fetch: dict[int, tuple[SnapshotSource, ...]]
    """Missing snapshots that each member must fetch, by member index."""

    @property
    def fetches_any(self) -> bool:
        """True if any member fetches a snapshot."""
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
        inventories: inventories of all its members.
        saved_step: newest step known to be on storage.
        excluded: steps that could not be restored before.
        ranks_per_process: a launcher's, which it starts in the order of the pods.
    """
    # 1. Which member holds which snapshot: several may hold copies of one.
    snapshots = {
        (snapshot.rank, snapshot.step, inventory.index): snapshot
        for inventory in inventories
        for snapshot in inventory.shards
    }
    # 2. The newest step that the gang can restore together.
    step = newest_common_step(
        snapshots.values(),
        world_size=record.world_size * ranks_per_process,
        floor=saved_step,
        excluded=excluded,
    )
    if step is None:
        return RestorePlan(restore_step=None, fetch={})
    # 3. Each member fetches what its ranks lack, from the holder with the lowest index.
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
    """Return the newest step with a snapshot of every rank, or None.

    Args:
        snapshots: all snapshots that the members of the gang hold.
        world_size: only snapshots of a gang of this size fit.
        floor: step of the checkpoint in storage; restoring an older step would lose more.
        excluded: steps that could not be restored before.
    """
    ranks_by_step: dict[int, set[int]] = {}
    for snapshot in snapshots:
        # Snapshots of another size have other shards, and older ones than storage lose work.
        if snapshot.world_size == world_size and snapshot.step >= (floor or 0):
            ranks_by_step.setdefault(snapshot.step, set()).add(snapshot.rank)
    complete = {step for step, ranks in ranks_by_step.items() if len(ranks) == world_size}
    return max(complete - set(excluded), default=None)


def newest_checkpoint_of(
    record: GenerationRecord, inventories: Iterable[Inventory]
) -> CommittedCheckpoint | None:
    """Return the newest checkpoint known to a member or to the operator, which may be late."""
    known = [inventory.saved for inventory in inventories if inventory.saved is not None]
    if record.restore_step is not None:
        checkpoint = CommittedCheckpoint(step=record.restore_step, digest=record.restore_digest)
        known.insert(0, checkpoint)
    return max(known, key=lambda checkpoint: checkpoint.step, default=None)
