"""The snapshots in this pod's memory: those of its own ranks, and copies of another pod's.

    <folder>/rank-00003/step-00000042.snapshot            written by rank 3 itself
    <folder>/replica/rank-00007/step-00000042.snapshot    a copy, held for a rank of another pod

The agent reads no bodies: it knows a file by the description that came from the rank that wrote it
or the agent that sent it. The rank that restores from a file checks its bytes. Of each rank the two
newest snapshots are held. Restoring a step makes every newer snapshot worthless, so all snapshots
that are held belong to one history.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from drumline_agent.protocol.snapshot_info import SnapshotInfo
from drumline_client.snapshot_file import KEPT_SNAPSHOTS, snapshot_file
from drumline_contract import ContractError


class SnapshotCatalog:
    """Index of the snapshots that this pod holds. With `folder` None it is empty."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._own: dict[int, list[SnapshotInfo]] = {}
        self._copies: dict[int, list[SnapshotInfo]] = {}

    @property
    def folder(self) -> Path | None:
        """Folder into which the ranks of this pod write their snapshots."""
        return self._folder

    @property
    def all(self) -> tuple[SnapshotInfo, ...]:
        """Everything held."""
        return (*_flat(self._own), *_flat(self._copies))

    def add_own(self, snapshot: SnapshotInfo) -> None:
        """Add a snapshot that a rank of this pod has written, or that was fetched for one."""
        for dropped in self._hold(self._own, snapshot):
            self.path(dropped.rank, dropped.step).unlink(missing_ok=True)

    def add_copy(self, snapshot: SnapshotInfo) -> None:
        """Add a complete copy for another pod."""
        for dropped in self._hold(self._copies, snapshot):
            self._copy_path(dropped.rank, dropped.step).unlink(missing_ok=True)

    def find(self, rank: int, step: int) -> tuple[SnapshotInfo, Path] | None:
        """Return a snapshot to send to another pod, and its file. None: it is not held."""
        for held, path_of in ((self._own, self.path), (self._copies, self._copy_path)):
            for snapshot in held.get(rank, []):
                if snapshot.step == step:
                    return snapshot, path_of(rank, step)
        return None

    def path(self, rank: int, step: int) -> Path:
        """Return the file of a snapshot of this pod's own rank."""
        return snapshot_file(self._root, rank=rank, step=step)

    def incoming_path(self, snapshot: SnapshotInfo, *, copy: bool) -> Path:
        """Return the path for a snapshot that arrives. `commit_incoming` renames it."""
        path = (self._copy_path if copy else self.path)(snapshot.rank, snapshot.step)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_suffix(f".from-{snapshot.generation}-{snapshot.attempt}")

    def commit_incoming(self, snapshot: SnapshotInfo, *, copy: bool) -> None:
        """Add a snapshot that has been written to `incoming_path` completely."""
        path = self.incoming_path(snapshot, copy=copy)
        # Atomic: a file under its final name is always complete.
        path.rename(path.with_suffix(".snapshot"))
        (self.add_copy if copy else self.add_own)(snapshot)

    def keep_history(self, step: int | None, *, world_size: int) -> None:
        """Remove what is not of the history that continues from `step`; None: everything."""
        for held, path_of in ((self._own, self.path), (self._copies, self._copy_path)):
            for snapshot in _flat(held):
                # Later steps belong to a history that the restore abandons.
                if step is None or snapshot.step > step or snapshot.world_size != world_size:
                    held[snapshot.rank].remove(snapshot)
                    path_of(snapshot.rank, snapshot.step).unlink(missing_ok=True)

    def remove_all(self) -> None:
        """Remove all snapshots, and so free their memory."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _root(self) -> Path:
        if self._folder is None:
            raise ContractError("this pod holds no snapshots")
        return self._folder

    def _copy_path(self, rank: int, step: int) -> Path:
        return snapshot_file(self._root / "replica", rank=rank, step=step)

    def _hold(
        self, held: dict[int, list[SnapshotInfo]], snapshot: SnapshotInfo
    ) -> list[SnapshotInfo]:
        """Add a snapshot. Return those of its rank that are no longer held.

        A known snapshot of a later step belongs to another history, because the program resumed
        from its own checkpoint.
        """
        before = [known for known in held.get(snapshot.rank, []) if known.step != snapshot.step]
        newest_first = sorted(before, key=lambda known: known.step, reverse=True)
        older = [known for known in newest_first if known.step < snapshot.step]
        held[snapshot.rank] = [snapshot, *older[: KEPT_SNAPSHOTS - 1]]
        return [known for known in before if known not in held[snapshot.rank]]


def _flat(held: dict[int, list[SnapshotInfo]]) -> list[SnapshotInfo]:
    return [snapshot for snapshots in held.values() for snapshot in snapshots]
