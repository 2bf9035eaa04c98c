"""The snapshots in this pod's memory: those of its own ranks, and copies of another node's.

    <folder>/rank-00003/step-00000042.snapshot            written by rank 3 itself
    <folder>/replica/rank-00007/step-00000042.snapshot    held for the rank of another pod

The agent reads no body: what it knows of a file it was told by the rank that wrote it or by the
agent that sent it, and whether the bytes are right the rank finds out that restores from them. Of
each rank the two newest are held. Going back to a step makes every newer snapshot worthless, so
those held at any time belong to one history.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from drumline_trainer.contract import ContractError
from drumline_trainer.contract import json_fields as read
from drumline_trainer.rank_protocol.snapshot_file import KEPT_SNAPSHOTS, snapshot_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MAX_SNAPSHOT_BYTES = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotInfo:
    """One rank's snapshot of one step."""

    rank: int
    step: int
    generation: int
    attempt: int
    """The membership that took it."""
    world_size: int
    bytes: int
    sha256: str

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> SnapshotInfo:
        """Check every field. Raises ContractError."""
        return cls(
            rank=read.integer(raw, "rank"),
            step=read.integer(raw, "step"),
            generation=read.integer(raw, "generation"),
            attempt=read.integer(raw, "attempt"),
            world_size=read.integer(raw, "world_size", low=1),
            bytes=read.integer(raw, "bytes", high=MAX_SNAPSHOT_BYTES),
            sha256=read.text(raw, "sha256", limit=64),
        )

    @classmethod
    def from_json(cls, text: str) -> SnapshotInfo:
        """Read `to_json`'s line. Raises ContractError."""
        return cls.parse(read.json_object(text.encode(), 4096))


class SnapshotCatalog:
    """What is held, and where it lies. `folder` None: the pod holds none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._own: dict[int, list[SnapshotInfo]] = {}
        self._copies: dict[int, list[SnapshotInfo]] = {}

    @property
    def folder(self) -> Path | None:
        """Where ranks write theirs."""
        return self._folder

    @property
    def all(self) -> tuple[SnapshotInfo, ...]:
        """Everything held."""
        return (*_flat(self._own), *_flat(self._copies))

    def add_own(self, shard: SnapshotInfo) -> None:
        """A rank of this pod has written one, or one was fetched for it."""
        self._hold(self._own, shard)

    def add_copy(self, shard: SnapshotInfo) -> None:
        """A copy for another pod has arrived whole."""
        for dropped in self._hold(self._copies, shard):
            self._copy_path(dropped.rank, dropped.step).unlink(missing_ok=True)

    def find(self, rank: int, step: int) -> tuple[SnapshotInfo, Path] | None:
        """A snapshot to send to another pod."""
        for held, path_of in ((self._own, self.path), (self._copies, self._copy_path)):
            for shard in held.get(rank, []):
                if shard.step == step:
                    return shard, path_of(rank, step)
        return None

    def path(self, rank: int, step: int) -> Path:
        """Where a rank of this pod has its snapshot."""
        return snapshot_file(self._root, rank=rank, step=step)

    def incoming_path(self, shard: SnapshotInfo, *, copy: bool) -> Path:
        """Where to write one that is on its way; rename it with `settle`."""
        path = (self._copy_path if copy else self.path)(shard.rank, shard.step)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_suffix(f".from-{shard.generation}-{shard.attempt}")

    def commit_incoming(self, shard: SnapshotInfo, *, copy: bool) -> None:
        """What was written to `arrival` is whole."""
        path = self.incoming_path(shard, copy=copy)
        path.rename(path.with_suffix(".snapshot"))
        (self.add_copy if copy else self.add_own)(shard)

    def keep_history(self, step: int | None, *, world_size: int) -> None:
        """Drop what does not belong to a history that goes on from `step`; None: everything."""
        for held, path_of in ((self._own, self.path), (self._copies, self._copy_path)):
            for shard in _flat(held):
                if step is None or shard.step > step or shard.world_size != world_size:
                    held[shard.rank].remove(shard)
                    path_of(shard.rank, shard.step).unlink(missing_ok=True)

    def remove_all(self) -> None:
        """Give the memory back."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _root(self) -> Path:
        if self._folder is None:
            raise ContractError("this pod holds no snapshots")
        return self._folder

    def _copy_path(self, rank: int, step: int) -> Path:
        return snapshot_file(self._root / "replica", rank=rank, step=step)

    def _hold(self, held: dict[int, list[SnapshotInfo]], shard: SnapshotInfo) -> list[SnapshotInfo]:
        """Add one; the ones that this makes one too many."""
        others = [known for known in held.get(shard.rank, []) if known.step != shard.step]
        newest_first = sorted([*others, shard], key=lambda known: known.step, reverse=True)
        held[shard.rank] = newest_first[:KEPT_SNAPSHOTS]
        return newest_first[KEPT_SNAPSHOTS:]


def newest_common_step(
    shards: Iterable[SnapshotInfo],
    *,
    world_size: int,
    floor: int | None,
    refused: Iterable[int] = (),
) -> int | None:
    """The newest step whose snapshot somebody holds of every rank; None where there is none.

    Args:
        shards: everything that the members of the gang hold.
        world_size: only snapshots of so many ranks fit.
        floor: storage has this step: older ones lose more than they save.
        refused: steps that nobody could restore from before.
    """
    ranks_by_step: dict[int, set[int]] = {}
    for shard in shards:
        if shard.world_size == world_size and shard.step >= (floor or 0):
            ranks_by_step.setdefault(shard.step, set()).add(shard.rank)
    whole = {step for step, ranks in ranks_by_step.items() if len(ranks) == world_size}
    return max(whole - set(refused), default=None)


def _flat(held: dict[int, list[SnapshotInfo]]) -> list[SnapshotInfo]:
    return [shard for shards in held.values() for shard in shards]
