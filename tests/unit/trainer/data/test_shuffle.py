from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_trainer.data.shuffle import permuted


def order(count: int, *, seed: int = 0, epoch: int = 0) -> list[int]:
    return [permuted(i, count=count, seed=seed, epoch=epoch) for i in range(count)]


@settings(deadline=None)
@given(count=st.integers(1, 300), seed=st.integers(), epoch=st.integers(0, 9))
def test_every_epoch_holds_every_window_once(count: int, seed: int, epoch: int) -> None:
    assert sorted(order(count, seed=seed, epoch=epoch)) == list(range(count))


def test_orders_differ_by_seed_and_epoch_and_look_shuffled() -> None:
    plain = order(500)
    assert order(500) == plain
    assert len({tuple(plain), tuple(order(500, seed=1)), tuple(order(500, epoch=1))}) == 3
    kept_neighbours = sum(abs(a - b) == 1 for a, b in pairwise(plain))
    assert kept_neighbours < 10


@pytest.mark.parametrize("position", [-1, 5])
def test_positions_outside_the_epoch_are_refused(position: int) -> None:
    with pytest.raises(ValueError, match="outside an epoch of 5"):
        permuted(position, count=5, seed=0, epoch=0)
