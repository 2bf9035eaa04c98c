"""Random lives of small clusters with all features (`scheduling_lifetime`); more: `make soak`."""

from __future__ import annotations

import pytest

from tests.property.scale import ALL
from tests.property.scheduling_lifetime import Life
from tests.seeds import seed_of_the_day

LIVES, AT_ONCE = 6000, 100
SLICE = 600
"""Beside the sequences of test_scheduling_sequences: a tenth of the lives a day."""


def first_seeds() -> range:
    """Of the lives that are lived together: the slice of the day, or all of them."""
    if ALL:
        return range(0, LIVES, AT_ONCE)
    first = seed_of_the_day("LIFE_SEED") * SLICE % LIVES
    return range(first, first + SLICE, AT_ONCE)


@pytest.mark.parametrize("first", first_seeds())
def test_whatever_happens_every_cycle_is_right_and_the_cluster_calms_down(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        Life(seed).live()


def test_elastic_gangs_that_reclaim_from_each_other_come_to_an_end() -> None:
    """Each started larger than it had reclaimed, with what the other was entitled to."""
    life = Life(3257)
    for event in (life.leave, life.lose, life.submit):
        life.happen(event)
    life.calm_down()


def test_a_gang_stays_in_its_rack_though_its_slices_ask_for_a_block_only() -> None:
    """A cordoned node's pod moved into another rack of the block where its slice is."""
    Life(21376).live()


def test_a_reclaim_counts_a_gang_that_is_about_to_move_as_one_that_stays() -> None:
    """The invariant took it for one that leaves, and its queue for one that borrows nothing."""
    Life(5227).live()


def test_a_rejection_is_the_same_where_a_node_has_no_room_for_a_pod_that_must_go_there() -> None:
    """Its figures came from an index that had not read the last changes."""
    Life(1710).live(30)
