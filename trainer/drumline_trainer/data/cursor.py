"""The data cursor: how many samples of the run have been consumed, over all ranks.

The cursor is the whole state of the data: the n-th sample of a run is a function of the seed and n
only (`Dataset.window_at`). A global batch is the samples cursor..cursor+B-1, and each of w ranks
takes one of its w equal slices. A resumed run, with any number of ranks, continues with exactly the
next sample. The cursor is saved in checkpoints and snapshots (`recovery.train_state`).

Example: cursor 24, a global batch of 12, 3 ranks, micro-batches of at most 3 samples. Rank 1 reads
samples 28..31 as the micro-batches 28..29 and 30..31; the next step's cursor is 36.
"""

from __future__ import annotations

import itertools


def rank_samples(cursor: int, *, batch: int, rank: int, world_size: int) -> range:
    """Return this rank's slice of the global batch of `batch` samples that starts at `cursor`.

    Args:
        cursor: samples before the batch.
        batch: samples of the global batch.
        rank: rank on the data axis.
        world_size: number of ranks on the data axis.
    """
    size = batch // world_size
    return range(cursor + rank * size, cursor + (rank + 1) * size)


def micro_batch_ranges(
    cursor: int, *, batch: int, rank: int, world_size: int, size: int | None
) -> list[range]:
    """Divide this rank's slice into the fewest micro-batches of at most `size` samples.

    Their sizes differ by at most one sample.

    Args:
        cursor: number of the batch's first sample.
        batch: samples of the global batch.
        rank: index of this rank among the data ranks.
        world_size: number of data ranks.
        size: maximum samples of a micro-batch; None: one micro-batch.
    """
    samples = rank_samples(cursor, batch=batch, rank=rank, world_size=world_size)
    # Rounded up: the fewest micro-batches that respect the limit.
    count = 1 if size is None else -(-len(samples) // size)
    # Integer division spreads the remainder, so sizes differ by at most one.
    cuts = [len(samples) * number // count for number in range(count + 1)]
    return [samples[start:stop] for start, stop in itertools.pairwise(cuts)]
