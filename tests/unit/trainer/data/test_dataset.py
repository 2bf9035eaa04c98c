from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_contract.config import DataConfig
from drumline_trainer.data.cursor import micro_batch_ranges, rank_samples
from drumline_trainer.data.dataset import Dataset
from drumline_trainer.data.sources import open_dataset

TEXT = bytes(range(1, 203))
WINDOWS = 20


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("text")
    (folder / "a.py").write_bytes(TEXT)
    return open_dataset(DataConfig(source=str(folder), sequence_length=10), seed=3)


def consumed(dataset: Dataset, cursor: int, *, batch: int, world_size: int) -> list[int]:
    """Windows of one global batch, rank after rank."""
    return [
        dataset.window_at(sample)
        for rank in range(world_size)
        for sample in rank_samples(cursor, batch=batch, rank=rank, world_size=world_size)
    ]


def test_the_order_is_the_one_that_checkpoints_of_older_versions_count_on(
    dataset: Dataset,
) -> None:
    order = [dataset.window_at(sample) for sample in range(2 * WINDOWS)]
    # written down when the trainer read nothing but bytes
    assert order == [
        13,
        10,
        3,
        11,
        18,
        2,
        17,
        19,
        0,
        15,
        7,
        8,
        5,
        16,
        14,
        1,
        12,
        6,
        4,
        9,
        14,
        12,
        3,
        15,
        4,
        11,
        1,
        9,
        19,
        0,
        10,
        7,
        16,
        2,
        8,
        13,
        5,
        6,
        18,
        17,
    ]


LIFE = st.lists(
    st.tuples(st.sampled_from([1, 2, 3, 4, 6]), st.integers(1, 4), st.integers(1, 3)),
    min_size=1,
    max_size=6,
)
"""Memberships of a gang: ranks, samples of each rank in a step, steps until the next restart."""


@settings(deadline=None)
@given(life=LIFE, size=st.one_of(st.none(), st.integers(1, 4)))
def test_each_window_once_over_restarts_ranks_and_micro_batches(
    dataset: Dataset, life: list[tuple[int, int, int]], size: int | None
) -> None:
    cursor = 0
    stream: list[int] = []
    for world_size, share, steps in life:
        for _ in range(steps):
            shape = {"batch": world_size * share, "world_size": world_size, "size": size}
            for rank in range(world_size):
                parts = micro_batch_ranges(cursor, rank=rank, **shape)
                stream += [sample for part in parts for sample in part]
            cursor += world_size * share
    assert stream == list(range(cursor))
    read = [dataset.window_at(sample) for sample in stream]
    epochs = [read[start : start + WINDOWS] for start in range(0, cursor, WINDOWS)]
    for epoch in epochs:
        assert max(Counter(epoch).values()) == 1
    for whole in epochs[: cursor // WINDOWS]:
        assert sorted(whole) == list(range(WINDOWS))


def test_a_restart_with_other_ranks_goes_on_with_the_next_sample(dataset: Dataset) -> None:
    stream = (
        consumed(dataset, 0, batch=24, world_size=4)
        + consumed(dataset, 24, batch=12, world_size=2)
        + consumed(dataset, 36, batch=24, world_size=3)
    )
    assert stream == consumed(dataset, 0, batch=60, world_size=1)
    assert Counter(stream) == Counter(dict.fromkeys(range(WINDOWS), 3))
