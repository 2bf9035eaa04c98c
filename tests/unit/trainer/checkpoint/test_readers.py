"""Every file has a reader for each rank that needs it, and as few as can be."""

from __future__ import annotations

import pytest

from drumline_trainer.checkpoint.shared_reading import readers_of


def test_copies_share_the_reading_by_bytes() -> None:
    needed = [dict.fromkeys(range(4), 10) for _ in range(4)]
    readers = readers_of([10, 10, 10, 10], needed)
    assert [{*of.values()} for of in readers] == [{0}, {1}, {2}, {3}]
    readers = readers_of([30, 10, 10, 10], needed[:2])
    assert [{*of.values()} for of in readers] == [{0}, {1}, {1}, {1}]


def test_who_alone_needs_a_file_reads_it() -> None:
    assert readers_of([9, 8], [{0: 9}, {1: 8}]) == [{0: 0}, {1: 1}]


def test_copies_of_cut_groups_read_half_each() -> None:
    """Ranks 0 and 2 hold the same, 1 and 3 too, and each has written half of that."""
    needed = [{0: 5, 2: 5}, {1: 5, 3: 5}, {0: 5, 2: 5}, {1: 5, 3: 5}]
    assert readers_of([5, 5, 5, 5], needed) == [
        {0: 0, 2: 0},
        {1: 1, 3: 1},
        {0: 2, 2: 2},
        {1: 3, 3: 3},
    ]


def test_who_needs_a_norm_of_a_file_does_not_read_it_for_the_one_who_needs_it_all() -> None:
    needed = [{0: 100}, {0: 1, 1: 90}]
    assert readers_of([100, 90], needed)[0] == {0: 0, 1: 0}
    # though it has nothing else to read
    assert readers_of([100, 200], [{0: 100, 1: 200}, {0: 1}]) == [{0: 0, 1: 0}, {0: 0}]


def test_a_file_that_nobody_needs_is_read_by_who_reads_least() -> None:
    assert readers_of([9, 4], [{0: 9}, {}]) == [{0: 0}, {1: 1}]


@pytest.mark.parametrize(
    ("caches", "expected"),
    [
        (["a", "a", "b", "b"], [{0: 0, 1: 1, 2: 0, 3: 0}, {0: 2, 1: 2, 2: 2, 3: 3}]),
        (["a", "b", "c", "d"], [{0: 0, 1: 0, 2: 0, 3: 0}, {0: 1, 1: 1, 2: 1, 3: 1}]),
        (["a", "a", "a", "a"], [{0: 0, 1: 1, 2: 2, 3: 3}] * 2),
    ],
)
def test_ranks_of_the_readers_cache_read_for_themselves(
    caches: list[str], expected: list[dict[int, int]]
) -> None:
    needed = [{0: 7, 1: 7}] * 4
    assert readers_of([7, 7], needed, caches=caches) == expected
