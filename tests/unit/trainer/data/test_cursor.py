from __future__ import annotations

import pytest

from drumline_trainer.data.cursor import micro_batch_ranges, rank_samples


@pytest.mark.parametrize(
    ("size", "sizes"),
    [(None, [6]), (6, [6]), (4, [3, 3]), (5, [3, 3]), (2, [2, 2, 2]), (1, [1] * 6)],
)
def test_a_slice_in_the_fewest_micro_batches_that_fit(size: int | None, sizes: list[int]) -> None:
    asked = {"batch": 12, "rank": 1, "world_size": 2}
    micro_batches = micro_batch_ranges(24, **asked, size=size)
    assert [len(samples) for samples in micro_batches] == sizes
    assert [n for samples in micro_batches for n in samples] == list(rank_samples(24, **asked))
