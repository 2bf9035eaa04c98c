"""Batches by cursor: the n-th sample of a run is a function of (seed, n) only.

The cursor counts samples the whole gang has consumed. A global batch is the samples
cursor..cursor+B-1; rank r of w takes the r-th of its w equal slices. So a restart, or another
number of ranks, continues with exactly the next sample, and the cursor is all the state there is.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from drumline_trainer.config import ModelConfig
from drumline_trainer.data.shuffle import permuted

IGNORED = -100
"""A target that no loss counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples as the model takes them.

    Shapes: B samples, S sequence, C channels, H height, W width.
    """

    inputs: npt.NDArray[Any]
    """Tokens, int64 of shape B S; or images, uint8 of shape B C H W."""
    targets: npt.NDArray[np.int64]
    """The next tokens, of shape B S, or the labels, of shape B; `IGNORED` where there is none."""
    documents: npt.NDArray[np.int32] | None = None
    """Which document of its window each input is of, counted from 0; of shape B S."""
    positions: npt.NDArray[np.int32] | None = None
    """Where in (the part in this window of) its document each input stands; of shape B S."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset(ABC):
    """Windows (of text; or images) in the run's order.

    Reads nothing but the samples that are asked for, and may be used by one thread at a time.
    """

    seed: int

    @property
    @abstractmethod
    def windows(self) -> int:
        """Samples in one epoch."""

    @abstractmethod
    def batch(self, samples: range) -> Batch:
        """These samples, in order."""

    @abstractmethod
    def target_count(self, samples: range) -> int:
        """Targets of these samples that count. Reads none of them: any rank may ask for all."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Digest of what the samples are: another one means that the cursor means other samples."""

    @abstractmethod
    def check_model(self, model: ModelConfig) -> None:
        """Raise ConfigError where the model cannot take these samples."""

    @abstractmethod
    def prefetch(self, samples: range) -> None:
        """Begin to fetch what is far away: these samples are asked for soon."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files, connections and threads; a read that goes on in a thread fails."""

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
