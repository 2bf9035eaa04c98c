from __future__ import annotations

import numpy as np
import pytest

from drumline_trainer.parallelism.context_parallel.zigzag import context_slices, visible

CHUNK = 3


def seen(*, size: int, causal: bool) -> tuple[np.ndarray, np.ndarray]:
    """How often each (query, key) is worked on, and how much work each (rank, origin) is."""
    length = 2 * CHUNK * size
    times = np.zeros((length, length), dtype=int)
    work = np.zeros((size, size), dtype=int)
    for rank in range(size):
        for origin in range(size):
            part = visible(rank=rank, origin=origin, length=2 * CHUNK, causal=causal)
            queries = context_slices(length, size=size, index=rank)[part.queries]
            keys = context_slices(length, size=size, index=origin)[part.keys]
            block = np.ones((len(queries), len(keys)), dtype=int)
            block = np.tril(block) if part.causal else block
            times[np.ix_(queries, keys)] += block
            work[rank, origin] = block.size
    return times, work


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_every_position_is_held_once_in_ascending_order(size: int) -> None:
    parts = [context_slices(48, size=size, index=index) for index in range(size)]
    assert sorted(np.concatenate(parts)) == list(range(48))
    assert all((np.diff(part) > 0).all() and len(part) == 48 // size for part in parts)


def test_a_rank_alone_holds_everything() -> None:
    assert context_slices(5, size=1, index=0).tolist() == [0, 1, 2, 3, 4]


def test_a_length_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"10.*4.*2 ranks"):
        context_slices(10, size=2, index=0)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_causal_ring_sees_each_position_and_the_earlier_ones_exactly_once(size: int) -> None:
    times, work = seen(size=size, causal=True)
    assert (times == np.tril(np.ones_like(times))).all()
    rest = work[~np.eye(size, dtype=bool)]
    assert (rest == work[0, 0] / 2).all()  # equal at every step, and half of the square


@pytest.mark.parametrize("size", [2, 3])
def test_without_a_mask_a_ring_sees_everything_exactly_once(size: int) -> None:
    times, _ = seen(size=size, causal=False)
    assert (times == 1).all()
