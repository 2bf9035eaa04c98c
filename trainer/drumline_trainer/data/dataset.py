"""A dataset: samples in an order that is a function of the seed only; batches of them.

The n-th sample of a run is `window_at(n)`. Which samples a rank reads next: `data.cursor`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from drumline_contract.config import ModelConfig
from drumline_trainer.data.shuffle import permuted

IGNORED = -100
"""The target of a position that the loss ignores."""
_SPLIT_SEED = 0
"""Selects the held-out windows. The run's seed must not, or another seed would train on them."""


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
    """For each input the index of its document in the window; of shape B S."""
    positions: npt.NDArray[np.int32] | None = None
    """For each input its position in its document, as far as in this window; of shape B S."""
    filled: npt.NDArray[np.int32] | None = None
    """Inputs of each window before its padding, of shape B. None: none has any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset(ABC):
    """Windows of text, or images, in the run's order.

    Reads only the samples that are requested. Not thread-safe.
    """

    seed: int
    held_out: int = 0
    """Windows that are kept from training: the same ones whatever the seed."""
    evaluates: bool = False
    """These samples are of the windows held out, each epoch in the same order."""
    remarks: tuple[str, ...] = ()
    """Lines for who reads the run's output: what is unusual in the data."""
    examples: tuple[str, ...] = ()
    """Lines that show the first documents token by token."""

    @property
    @abstractmethod
    def windows(self) -> int:
        """All there are, held out or not."""

    @abstractmethod
    def batch(self, samples: range) -> Batch:
        """Return the samples with these numbers, in order."""

    @abstractmethod
    def target_count(self, samples: range) -> int:
        """Return the number of targets that the loss counts, without reading the samples."""

    def token_count(self, samples: range) -> int:
        """Return the number of inputs of these samples without padding, trained on or not.

        Images count as many as targets.
        """
        return self.target_count(samples)

    @abstractmethod
    def fingerprint(self) -> str:
        """Digest of the samples; if it changes, a saved cursor refers to other samples."""

    @abstractmethod
    def check_model(self, model: ModelConfig) -> None:
        """Raise ConfigError where the model cannot take these samples."""

    @abstractmethod
    def prefetch(self, samples: range) -> None:
        """Begin to fetch these samples from remote storage; they are requested soon."""

    @abstractmethod
    def close(self) -> None:
        """Close files, connections and threads; a read in another thread fails."""

    def notes(self) -> tuple[str, ...]:
        """Return lines for the run's output: what is not learned from, and why."""
        return self.remarks

    def class_names(self) -> tuple[str, ...]:
        """Return the names of image classes by number, if the data has them.

        They are saved with the model.
        """
        return ()

    def without(self, count: int) -> Self:
        """Return the remaining samples if `count` windows are held out."""
        return replace(self, held_out=count)

    def held_out_part(self) -> Self:
        """Return the held-out samples, or all if none are held out."""
        return replace(self, held_out=self.held_out or self.windows, evaluates=True)

    @property
    def epoch_samples(self) -> int:
        """Samples of one epoch."""
        return self.held_out if self.evaluates else self.windows - self.held_out

    def window_at(self, sample: int) -> int:
        """Return the window that is the run's n-th sample.

        Each epoch has each window exactly once.
        """
        epoch, position = divmod(sample, self.epoch_samples)
        if self.evaluates:
            # Held-out windows come first in the split's permutation. `held_out` positions of it are
            # the epoch.
            return permuted(position, count=self.windows, seed=_SPLIT_SEED, epoch=0)
        # Training has an order of its own per epoch, over the remaining windows only.
        number = permuted(position, count=self.epoch_samples, seed=self.seed, epoch=epoch)
        if not self.held_out:
            # Without a held-out part the split's permutation is skipped, so runs without evaluation
            # keep their order.
            return number
        # The split's permutation maps to windows after the first `held_out` ones. It does not
        # depend on the run's seed.
        return permuted(self.held_out + number, count=self.windows, seed=_SPLIT_SEED, epoch=0)
