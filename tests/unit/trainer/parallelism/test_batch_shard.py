"""Which samples and positions every rank of a layout reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from drumline_contract.config import TrainerConfig, merge
from drumline_contract.layout import Layout
from drumline_trainer.data.corpus import Corpus
from drumline_trainer.data.sources import open_dataset
from drumline_trainer.data.text_dataset import TextDataset
from drumline_trainer.parallelism.batch_shard import BatchShard
from drumline_trainer.sharding.world import World

LENGTH, BATCH = 16, 8
LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (1, {}),
    (4, {"data_parallel": "ddp"}),
    (4, {"replicate": 2}),
    (8, {"tensor": 2, "replicate": 2}),
    (8, {"pipeline": 2, "context": 2}),
    (16, {"tensor": 2, "context": 2, "replicate": 2}),
]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    for number in range(40):
        (tmp_path / f"{number:02d}.txt").write_bytes(bytes(range(number, number + 20)))
    return tmp_path


def shares(text: Path, ranks: int, parallelism: dict[str, Any], **changes: Any) -> list[BatchShard]:
    raw = {
        "data": {
            "source": str(text),
            "pattern": "*.txt",
            "sequence_length": LENGTH,
            "packing": "separate",
        },
        "global_batch_size": BATCH,
        "parallelism": parallelism,
    }
    config = TrainerConfig.from_dict(merge(raw, changes))
    layout = Layout.of(config.parallelism, world_size=ranks)
    device = torch.device("cpu")
    return [
        BatchShard.of(
            open_dataset(config.data, seed=config.seed),
            config=config,
            world=World(layout=layout, rank=rank, device=device),
        )
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("micro_batch_size", [None, 1])
@pytest.mark.parametrize(("ranks", "parallelism"), LAYOUTS)
def test_each_position_of_each_sample_is_read_by_those_who_share_it(
    text: Path, ranks: int, parallelism: dict[str, Any], micro_batch_size: int | None
) -> None:
    readers: dict[tuple[int, int], set[int]] = defaultdict(set)
    every = shares(text, ranks, parallelism, micro_batch_size=micro_batch_size)
    for rank, share in enumerate(every):
        step = share.load(BATCH)
        assert isinstance(share.dataset, TextDataset)
        assert step.targets == share.dataset.target_count(range(BATCH, 2 * BATCH))
        assert step.tokens == BATCH * LENGTH
        for part in step.micro_batches:
            whole = share.dataset.batch(part.samples)
            held = range(LENGTH) if share.positions is None else share.positions.tolist()
            assert part.inputs.tolist() == whole.inputs[:, held].tolist()
            assert part.targets.tolist() == whole.targets[:, held].tolist()
            assert part.documents is not None  # of whole windows, whatever is held
            assert whole.documents is not None
            assert part.documents.ids.tolist() == whole.documents.tolist()
            for sample in part.samples:
                for position in held:
                    readers[sample, position].add(rank)
    layout = every[0].parts
    assert set(readers) == {(n, p) for n in range(BATCH, 2 * BATCH) for p in range(LENGTH)}
    context = ranks // layout // parallelism.get("tensor", 1) // parallelism.get("pipeline", 1)
    groups = {frozenset(ranks) for ranks in readers.values()}
    assert len(groups) == layout * context
    assert sum(map(len, groups)) == ranks  # no rank is in two of them


@dataclass(frozen=True, kw_only=True)
class FarAway(Corpus):
    """A text that remembers what it was asked for ahead of time."""

    asked: list[tuple[int, int]] = field(default_factory=list)

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        self.asked.extend(ranges)


def test_only_its_own_samples_of_the_next_step_are_asked_for_ahead(text: Path) -> None:
    for rank, share in enumerate(shares(text, 4, {"data_parallel": "ddp"})):
        assert isinstance(share.dataset, TextDataset)
        here = share.dataset.text
        assert isinstance(here, Corpus)
        there = FarAway(folder=here.folder, paths=here.paths, ends=here.ends)
        dataset = replace(share.dataset, text=there)
        replace(share, dataset=dataset).load(0)
        samples = range(BATCH + 2 * rank, BATCH + 2 * rank + 2)
        assert there.asked == [(dataset.window_at(n) * LENGTH, LENGTH + 1) for n in samples]


def test_all_that_a_gpu_is_given_is_pinned(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: set[int] = set()

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()  # no GPU is there to pin it for
        pinned.add(copy.data_ptr())
        return copy

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    (share,) = shares(text, 1, {})
    for part in replace(share, device=torch.device("cuda")).load(0).micro_batches:
        assert part.documents is not None
        given = (part.inputs, part.targets, part.documents.since_begin, part.documents.ends)
        assert all(item.data_ptr() in pinned for item in given)
