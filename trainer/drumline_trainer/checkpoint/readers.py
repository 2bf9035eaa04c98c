"""Who reads which file of a checkpoint: every file by one rank, for all that need something of it.

So a checkpoint is read from its storage once, however many ranks hold copies of the model, and a
file's bytes and its digest pass through one rank. Of the ranks that need much of a file the one
with the least to read so far is its reader; of a file that no rank needs, as it must be verified
all the same, the one with the least of all.

Where ranks share a cache of the storage's files (`sharding.page_cache`), those of the reader's read
for themselves. `caches` says who shares one.

Example: two copies, each cut over two ranks (0, 1 and 2, 3), wrote a file each of 1 GB; what rank 0
wrote is needed by 0 and 2. Rank 0 reads its own file and rank 2 its own, both for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

Readers = Sequence[Mapping[int, int]]
"""By file: who reads it, for each rank that needs it; and the reader of a file that none needs."""
_MUCH: Final = 0.5
"""Of what the rank that needs most of a file needs: who needs less reads it for no other."""


def readers_of(
    sizes: Sequence[int],
    needed: Sequence[Mapping[int, int]],
    *,
    caches: Sequence[str] | None = None,
) -> Readers:
    """Choose; the same on all ranks that ask with the same values.

    Args:
        sizes: bytes of each file.
        needed: by rank: bytes that it needs of a file.
        caches: by rank, the name of its cache; None: no reading is free.
    """
    by_file: list[dict[int, int]] = [{} for _ in sizes]
    for rank, files in enumerate(needed):
        for file, count in files.items():
            by_file[file][rank] = count
    loads = [0] * len(needed)
    readers: list[dict[int, int]] = [{} for _ in sizes]
    for file in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        wanting = by_file[file]
        most = max(wanting.values(), default=0)
        able = [rank for rank in wanting if wanting[rank] >= _MUCH * most] or range(len(needed))
        reader = min(able, key=lambda rank: (loads[rank], -wanting.get(rank, 0), rank))
        assigned = dict.fromkeys(wanting, reader) or {reader: reader}
        if caches is not None:
            assigned |= {rank: rank for rank in wanting if caches[rank] == caches[reader]}
        for rank in {*assigned.values()}:
            loads[rank] += sizes[file]
        readers[file] = assigned
    return readers
