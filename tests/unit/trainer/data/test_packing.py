from __future__ import annotations

from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from drumline_trainer.data.packing import best_fit


def test_the_example() -> None:
    assert best_fit(np.array([3, 5, 2, 4]), capacity=8) == [[1, 0], [3, 2]]


@given(lengths=st.lists(st.integers(1, 40), max_size=80))
def test_every_document_has_a_place_and_no_window_is_too_full(lengths: list[int]) -> None:
    windows = best_fit(np.array(lengths, dtype=np.int64), capacity=40)
    assert sorted(chain.from_iterable(windows)) == list(range(len(lengths)))
    sums = [sum(lengths[document] for document in window) for window in windows]
    assert all(0 < length <= 40 for length in sums)
    # no two windows fit into one, or the later one's documents had gone to the first
    assert len(windows) < 2 or sum(sorted(sums)[:2]) > 40
