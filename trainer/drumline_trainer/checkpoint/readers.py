"""Assignment of a checkpoint's files to readers: one rank reads each file for all ranks.

So a checkpoint is read from its storage once, however many ranks hold copies of the model, and one
rank computes a file's digest. The reader is the rank with the least assigned bytes, among those
that need much of the file. A file that no rank needs must also be verified. It is read by the rank
with the least assigned bytes of all.

Ranks that share a cache of the storage's files with the reader (`sharding.page_cache`) read the
file themselves. `caches` tells which ranks share one.

Example: two copies, each cut over two ranks (0, 1 and 2, 3), wrote a file each of 1 GB. Ranks 0 and
2 need the file of rank 0. Rank 0 reads its own file and rank 2 its own, both for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

Readers = Sequence[Mapping[int, int]]
"""The reader for each rank that needs a file, and of a file that no rank needs; by file."""
_READER_SHARE: Final = 0.5
"""Share of the largest need of a file. A rank that needs less does not read it for others."""


def readers_of(
    sizes: Sequence[int],
    needed: Sequence[Mapping[int, int]],
    *,
    caches: Sequence[str] | None = None,
) -> Readers:
    """Choose; the same on all ranks that ask with the same values.

    Args:
        sizes: bytes of each file.
        needed: for each rank the bytes that it needs of each file.
        caches: for each rank the name of its cache. None: no rank has a cache.
    """
    # 1. Turn the needs around: which ranks want which file.
    by_file: list[dict[int, int]] = [{} for _ in sizes]
    for rank, files in enumerate(needed):
        for file, count in files.items():
            by_file[file][rank] = count
    loads = [0] * len(needed)
    readers: list[dict[int, int]] = [{} for _ in sizes]
    # 2. Largest files first balances the loads best (longest processing time first).
    for file in sorted(range(len(sizes)), key=lambda number: (-sizes[number], number)):
        wanting = by_file[file]
        most = max(wanting.values(), default=0)
        able = [rank for rank in wanting if wanting[rank] >= _READER_SHARE * most] or range(
            len(needed)
        )
        reader = min(able, key=lambda rank: (loads[rank], -wanting.get(rank, 0), rank))
        # A file that no rank needs has a reader, too: it must be verified.
        assigned = dict.fromkeys(wanting, reader) or {reader: reader}
        # 3. Ranks beside the reader get the file from the page cache at no cost to the storage.
        if caches is not None:
            assigned |= {rank: rank for rank in wanting if caches[rank] == caches[reader]}
        for rank in {*assigned.values()}:
            loads[rank] += sizes[file]
        readers[file] = assigned
    return readers
