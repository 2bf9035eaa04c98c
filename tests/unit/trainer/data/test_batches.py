from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from drumline_trainer.config import ConfigError, DataConfig
from drumline_trainer.data.batches import ByteDataset, open_dataset

TEXT = bytes(range(1, 203))


@pytest.fixture
def dataset(tmp_path: Path) -> ByteDataset:
    (tmp_path / "a.py").write_bytes(TEXT)
    return open_dataset(DataConfig(source=str(tmp_path), sequence_length=10), seed=3)


def consumed(dataset: ByteDataset, cursor: int, *, batches: int, world_size: int) -> list[int]:
    """Windows of consecutive global batches of 12, rank after rank."""
    return [
        dataset.window_at(sample)
        for start in range(cursor, cursor + 12 * batches, 12)
        for rank in range(world_size)
        for sample in dataset.rank_samples(start, batch=12, rank=rank, world_size=world_size)
    ]


def test_each_byte_is_a_target_once_per_epoch(dataset: ByteDataset) -> None:
    assert dataset.windows == 20
    rows = dataset.tokens(range(dataset.windows))
    assert rows.shape == (20, 11)
    assert sorted(rows[:, 1:].flatten().tolist()) == list(TEXT[1:201])
    assert (rows[:, 1:] == rows[:, :-1] + 1).all()


@pytest.mark.parametrize("world_size", [2, 3, 4, 6, 12])
def test_the_stream_does_not_depend_on_the_number_of_ranks(
    dataset: ByteDataset, world_size: int
) -> None:
    alone = consumed(dataset, 0, batches=5, world_size=1)
    assert consumed(dataset, 0, batches=5, world_size=world_size) == alone


def test_exactly_once_over_a_restart_with_other_ranks(dataset: ByteDataset) -> None:
    stream = (
        consumed(dataset, 0, batches=2, world_size=4)
        + consumed(dataset, 24, batches=1, world_size=2)
        + consumed(dataset, 36, batches=2, world_size=3)
    )
    assert stream == consumed(dataset, 0, batches=5, world_size=1)
    assert Counter(stream) == Counter(dict.fromkeys(range(20), 3))


def test_too_little_text_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"0123456789")
    config = DataConfig(source=str(tmp_path), sequence_length=10)
    with pytest.raises(ConfigError, match=r"data\.sequence_length: 10 bytes under"):
        open_dataset(config, seed=0)


@pytest.mark.parametrize(
    ("size", "sizes"),
    [(None, [6]), (6, [6]), (4, [3, 3]), (5, [3, 3]), (2, [2, 2, 2]), (1, [1] * 6)],
)
def test_a_share_in_the_fewest_parts_that_fit(
    dataset: ByteDataset, size: int | None, sizes: list[int]
) -> None:
    asked = {"batch": 12, "rank": 1, "world_size": 2}
    parts = dataset.micro_batches(24, **asked, size=size)
    assert [len(part) for part in parts] == sizes
    assert [n for part in parts for n in part] == list(dataset.rank_samples(24, **asked))
