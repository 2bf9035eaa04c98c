"""Two ranks of one membership that save, one after the other in this process, and a restore."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from drumline_contract.buckets.objects import ObjectBucket
from drumline_trainer.checkpoint.bucket.storage import BucketStorage
from drumline_trainer.checkpoint.commit import CommitOutcome, Committed, commit
from drumline_trainer.checkpoint.folder import CheckpointFolder
from drumline_trainer.checkpoint.ownership import Owner
from drumline_trainer.checkpoint.rank_writer import RankWriter
from drumline_trainer.checkpoint.restore import restore
from drumline_trainer.checkpoint.storage import CheckpointStorage
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice

CPU = torch.device("cpu")
RANKS = 2
ROWS = {"weight": (6, 5), "moment": (4, 3), "half": (2, 7)}
DTYPES = {"half": torch.bfloat16}

Place = str | Path


def opened(
    place: Place,
    generation: int = 1,
    attempt: int = 0,
    *,
    owner: str = "job",
    claim: str = "0a",
    retries: int = 0,
) -> CheckpointStorage:
    """The storage as one membership sees it."""
    own = Owner(name=owner, membership=(generation, attempt))
    if isinstance(place, Path):
        return CheckpointFolder(path=place, owner=owner, membership=own.membership)
    return BucketStorage(ObjectBucket(place, retries=retries), owner=own, claim=claim)


def state(seed: int) -> dict[str, torch.Tensor]:
    """Whole tensors, others for each seed."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(shape, generator=generator).to(DTYPES.get(name, torch.float32))
        for name, shape in ROWS.items()
    }


def slices_of(tensors: Mapping[str, torch.Tensor], *, rank: int, ranks: int) -> list[TensorSlice]:
    """The rows that a rank holds."""
    held: list[TensorSlice] = []
    for name, whole in tensors.items():
        start, stop = len(whole) * rank // ranks, len(whole) * (rank + 1) // ranks
        rows = whole[start:stop]
        box = Box(offsets=(start, 0), shape=tuple(rows.shape))
        held.append(TensorSlice(name=name, shape=tuple(whole.shape), box=box, tensor=rows))
    return held


@dataclass
class Gang:
    """Ranks of one membership, each with a storage and a writer of its own."""

    storages: list[CheckpointStorage]
    writers: list[RankWriter] = field(init=False)

    def __post_init__(self) -> None:
        self.writers = [RankWriter(rank=rank, world_size=RANKS) for rank in range(RANKS)]

    @classmethod
    def claimed(cls, open_storage: Callable[[], CheckpointStorage]) -> Gang:
        """Rank 0 claims."""
        gang = cls([open_storage() for _ in range(RANKS)])
        gang.storages[0].claim()
        return gang

    def try_to_save(self, step: int) -> CommitOutcome:
        """What becomes of a checkpoint of `state(step)`."""
        tensors, reports = state(step), list[bytes]()
        files = [storage.begin(step) for storage in self.storages]
        for rank, writer in enumerate(self.writers):
            slices = slices_of(tensors, rank=rank, ranks=RANKS)
            reports.append(writer.write(files[rank], slices))
        return commit(self.storages[0], files=files[0], step=step, trainer={}, reports=reports)

    def save(self, step: int) -> None:
        """Commit `state(step)`."""
        outcome = self.try_to_save(step)
        assert isinstance(outcome, Committed), outcome


def restored(storage: CheckpointStorage) -> int | None:
    """The step that one rank restores; it has to be its state to the last bit."""
    tensors = {name: torch.zeros_like(whole) for name, whole in state(0).items()}
    slices = slices_of(tensors, rank=0, ranks=1)
    outcome = restore(storage=storage, slices=slices, device=CPU)
    if outcome is None:
        return None
    expected = state(outcome.step)
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    return outcome.step
