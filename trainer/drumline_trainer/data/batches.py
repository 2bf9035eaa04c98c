"""Batches by cursor: the n-th sample of a run is a function of (seed, n) only.

A window is `sequence_length + 1` bytes: inputs and, shifted by one, targets; windows start every
`sequence_length` bytes, so each byte is a target once per epoch. The cursor counts samples the
whole gang has consumed. A global batch is the samples cursor..cursor+B-1; rank r of w takes the
r-th of its w equal slices. So a restart, or another number of ranks, continues with exactly the
next sample.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drumline_trainer.config import ConfigError, DataConfig
from drumline_trainer.data.corpus import Corpus, open_corpus
from drumline_trainer.data.order import permuted


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteDataset:
    """Windows of a corpus in the run's order."""

    corpus: Corpus
    sequence_length: int
    seed: int

    @property
    def windows(self) -> int:
        """Samples in one epoch."""
        return (self.corpus.size_bytes - 1) // self.sequence_length

    def window_at(self, sample: int) -> int:
        """Which window the run's n-th sample is: each exactly once per epoch."""
        epoch, position = divmod(sample, self.windows)
        return permuted(position, count=self.windows, seed=self.seed, epoch=epoch)

    def rank_samples(self, cursor: int, *, batch: int, rank: int, world_size: int) -> range:
        """This rank's slice of the global batch that starts at `cursor`."""
        share = batch // world_size
        return range(cursor + rank * share, cursor + (rank + 1) * share)

    def micro_batches(
        self, cursor: int, *, batch: int, rank: int, world_size: int, size: int | None
    ) -> list[range]:
        """This rank's slice in the fewest equal parts of at most `size` samples; None: in one.

        Parts differ by one sample where the slice does not divide.
        """
        whole = self.rank_samples(cursor, batch=batch, rank=rank, world_size=world_size)
        parts = 1 if size is None else -(-len(whole) // size)
        cuts = [len(whole) * part // parts for part in range(parts + 1)]
        return [whole[start:stop] for start, stop in itertools.pairwise(cuts)]

    def tokens(self, samples: range) -> npt.NDArray[np.int64]:
        """Bytes of the samples, one row of sequence_length + 1 each."""
        length = self.sequence_length + 1
        rows = [self.corpus.read(self.window_at(s) * self.sequence_length, length) for s in samples]
        return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, length).astype(np.int64)


def open_dataset(config: DataConfig, *, seed: int) -> ByteDataset:
    """List the text and check that it fills at least one window.

    Raises:
        ConfigError: no folder, no files, or less text than one sequence.
    """
    corpus = open_corpus(config)
    if corpus.size_bytes <= config.sequence_length:
        raise ConfigError(
            f"data.sequence_length: {corpus.size_bytes} bytes under {corpus.folder} are too few for"
            f" one sequence of {config.sequence_length}; add text or shorten the sequence"
        )
    return ByteDataset(corpus=corpus, sequence_length=config.sequence_length, seed=seed)
