"""The samples that a run measures its loss on and never trains on.

Either a part of its own data's windows, drawn evenly and the same for every seed, or other files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from drumline_contract.config import ConfigError, DataConfig, EvaluationConfig, ModelConfig
from drumline_trainer.data.dataset import IGNORED, Batch, Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutDataset(Dataset):
    """The first `count` samples of a dataset; those after them have no targets.

    So a last batch that is not full has the shape of all others.
    """

    samples: Dataset
    count: int

    @property
    def windows(self) -> int:
        """Number of windows of the dataset."""
        return self.samples.windows

    def batch(self, samples: range) -> Batch:
        """Return the samples. Missing ones are replaced by the first ones without targets."""
        # The range is clamped at both ends, because a late batch may lie completely behind the last
        # sample.
        real = range(min(samples.start, self.count), min(samples.stop, self.count))
        missing = len(samples) - len(real)
        if not missing:
            return self.samples.batch(real)
        # Filling keeps the shape, which compiled kernels and pipelines require. Without targets it
        # adds 0 to the loss.
        filling = self.samples.batch(range(missing))
        without = replace(filling, targets=np.full_like(filling.targets, IGNORED))
        return _joined(self.samples.batch(real), without) if real else without

    def target_count(self, samples: range) -> int:
        """Return the number of counted targets of the existing samples."""
        return self.samples.target_count(
            range(min(samples.start, self.count), min(samples.stop, self.count))
        )

    def fingerprint(self) -> str:
        """Return the fingerprint of the dataset."""
        return self.samples.fingerprint()

    def check_model(self, model: ModelConfig) -> None:
        """Raise ConfigError where the model cannot take these samples."""
        self.samples.check_model(model)

    def prefetch(self, samples: range) -> None:
        """Begin to fetch these samples."""
        self.samples.prefetch(range(min(samples.start, self.count), min(samples.stop, self.count)))

    def close(self) -> None:
        """Close the dataset."""
        self.samples.close()


def evaluation_source(data: DataConfig, evaluation: EvaluationConfig) -> DataConfig | None:
    """Return the source of the evaluation. None: a part of the training data."""
    if evaluation.source is None and evaluation.pattern is None:
        return None
    return replace(
        data,
        source=evaluation.source or data.source,
        pattern=evaluation.pattern or data.pattern,
        # A source of its own replaces the mixture. With another pattern alone the mixture stays.
        mixture=None if evaluation.source is not None else data.mixture,
    )


def withhold(dataset: Dataset, evaluation: EvaluationConfig) -> Dataset:
    """Return the dataset without its held-out part.

    Raises:
        ConfigError: one of the two would be empty.
    """
    # `round` is the same on all ranks. The share is taken of windows, because windows are what is
    # withheld.
    count = round(dataset.windows * evaluation.share)
    if not 1 <= count < dataset.windows:
        raise ConfigError(
            f"evaluation.share: {evaluation.share} of {dataset.windows} windows are {count}; hold"
            " out another share, or name other files in evaluation.source"
        )
    return dataset.without(count)


def held_out_part(dataset: Dataset, evaluation: EvaluationConfig) -> HeldOutDataset:
    """Return the samples of the evaluation: the held-out ones, or all if none are held out."""
    part = dataset.held_out_part()
    # The seed is unused: the part below has the order of the samples.
    return HeldOutDataset(seed=0, samples=part, count=min(part.held_out, evaluation.samples))


def _joined(first: Batch, second: Batch) -> Batch:
    return Batch(
        inputs=np.concatenate([first.inputs, second.inputs]),
        targets=np.concatenate([first.targets, second.targets]),
        documents=_both(first.documents, second.documents),
        positions=_both(first.positions, second.positions),
    )


def _both(
    first: npt.NDArray[np.int32] | None, second: npt.NDArray[np.int32] | None
) -> npt.NDArray[np.int32] | None:
    # Both batches come from one dataset, so documents are present in both or in none.
    return None if first is None or second is None else np.concatenate([first, second])
