"""The positions of a sequence that each context rank holds. No torch.

A sequence is cut into 2·size equal chunks. Rank i holds the chunks i and 2·size-1-i: one from the
cheap start and one from the expensive end of the causal triangle. So every rank has the same work
at every step of the ring:

    size 2          keys  0  1  2  3        rank 0: chunks 0 and 3
    queries   0           x                 rank 1: chunks 1 and 2
              1           x  x
              2           x  x  x           x: at least one position may be seen
              3           x  x  x  x

With 8 positions rank 0 holds 0 1 6 7 and rank 1 holds 2 3 4 5. Beside its own keys,

    rank 0 works on queries     6 7  and rank 1's keys 2 3 4 5:   8 pairs, none of them masked
    rank 1 works on queries 2 3 4 5  and rank 0's keys 0 1:       8 pairs, none of them masked
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Visible:
    """The part of one rank's queries times another rank's keys that no mask hides."""

    queries: slice
    keys: slice
    causal: bool
    """True for the triangle at and below the diagonal, False for all pairs."""


def context_slices(length: int, *, size: int, index: int) -> NDArray[np.int64]:
    """Return the ascending positions that rank `index` of `size` holds of such sequences.

    Args:
        length: tokens of the sequence.
        size: number of ranks.
        index: index of this rank.

    Raises:
        ValueError: the length does not divide into 2·size chunks.
    """
    if size == 1:
        return np.arange(length)
    if length % (2 * size):
        raise ValueError(f"a sequence of {length} does not divide by {2 * size}, for {size} ranks")
    chunks = np.arange(length).reshape(2 * size, -1)
    return np.concatenate((chunks[index], chunks[-1 - index]))


def visible(*, rank: int, origin: int, length: int, causal: bool) -> Visible:
    """Return the pairs of `rank`'s queries and `origin`'s keys that are visible.

    The first chunk of an earlier rank is before both chunks of ours, its last chunk is after both.
    Both chunks of a later rank are between ours. Either way half of the square is visible.

    Args:
        rank: holds the queries.
        origin: holds the keys.
        length: number of positions that each rank holds.
        causal: whether a query sees only earlier keys.
    """
    half, whole = length // 2, slice(0, length)
    if not causal or origin == rank:
        return Visible(queries=whole, keys=whole, causal=causal)
    if origin < rank:
        return Visible(queries=whole, keys=slice(0, half), causal=False)
    return Visible(queries=slice(half, length), keys=whole, causal=False)
