"""Samples of several sources in fixed shares, in an order that is a function of the seed alone.

Samples are dealt in rounds of 4,096. In each round a part has as many as its share says, at places
that the seed shuffles; which of its own samples they are follows from the round: so the n-th sample
of a run is found without those before it, each part's samples come in its own order of epochs, and
the cursor stays one number.

Example with rounds of 4, shares 3/4 and 1/4: in round 0 the first part gives its samples 0, 1 and 2
and the second its sample 0, in round 1 the first 3, 4 and 5 and the second 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

import numpy as np
import numpy.typing as npt

from drumline_contract.config import ConfigError, ModelConfig
from drumline_trainer.data.dataset import Batch, Dataset
from drumline_trainer.data.shuffle import permuted

ROUND = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureDataset(Dataset):
    """Several datasets as one."""

    names: tuple[str, ...]
    parts: tuple[Dataset, ...]
    counts: tuple[int, ...]
    """Samples of each in a round."""

    @property
    def windows(self) -> int:
        """Number of windows of all parts."""
        return sum(part.windows for part in self.parts)

    def batch(self, samples: range) -> Batch:
        """Return the samples. Neighbours of one part are read together."""
        places = [self._place(sample) for sample in samples]
        # Each run becomes one read. Concatenation keeps the order of the samples, so a rank sees
        # the same batch in any layout.
        batches = [self.parts[part].batch(run) for part, run in _runs(places)]
        return Batch(
            inputs=np.concatenate([batch.inputs for batch in batches]),
            targets=np.concatenate([batch.targets for batch in batches]),
            documents=_joined([batch.documents for batch in batches]),
            positions=_joined([batch.positions for batch in batches]),
            filled=_joined([batch.filled for batch in batches]),
        )

    def target_count(self, samples: range) -> int:
        """Return the number of targets of these samples that the loss counts."""
        return sum(
            self.parts[part].target_count(run)
            for part, run in _runs([self._place(sample) for sample in samples])
        )

    def token_count(self, samples: range) -> int:
        """Return the number of inputs of these samples without padding."""
        return sum(
            self.parts[part].token_count(run)
            for part, run in _runs([self._place(sample) for sample in samples])
        )

    def fingerprint(self) -> str:
        """Digest of all parts and of what is taken of each."""
        # A fingerprint includes the counts: with other shares, a saved cursor refers to other
        # samples.
        listing = "".join(
            f"{part.fingerprint()} {count}\n"
            for part, count in zip(self.parts, self.counts, strict=True)
        )
        return hashlib.sha256(listing.encode()).hexdigest()[:32]

    def check_model(self, model: ModelConfig) -> None:
        """Raise ConfigError where the model cannot take the samples of a part."""
        for part in self.parts:
            part.check_model(model)

    def notes(self) -> tuple[str, ...]:
        """Return each part's share and epoch, and the part's own notes."""
        lines = [f"data: {self.windows} windows of {len(self.parts)} sources"]
        for name, part, count in zip(self.names, self.parts, self.counts, strict=True):
            # A part gives `count` of 4,096 samples, so its epoch takes more samples of the mixture.
            epoch = part.epoch_samples * ROUND / count
            lines.append(
                f"  {name}: {count / ROUND:.1%} of the samples; {part.epoch_samples} windows, an"
                f" epoch in {epoch:.0f} samples"
            )
            lines += [f"  {note}" for note in part.notes()]
        return tuple(lines)

    def prefetch(self, samples: range) -> None:
        """Begin to fetch these samples."""
        for part, run in _runs([self._place(sample) for sample in samples]):
            self.parts[part].prefetch(run)

    def close(self) -> None:
        """Close all parts."""
        for part in self.parts:
            part.close()

    def without(self, count: int) -> MixtureDataset:
        """Leave out `count` windows; each part gives its share of them."""
        # Each part keeps at least one window for training. Small parts may give none to the
        # held-out set.
        share = count / self.windows
        parts = tuple(
            part.without(min(round(part.windows * share), part.windows - 1)) for part in self.parts
        )
        return replace(self, parts=parts, held_out=sum(part.held_out for part in parts))

    def held_out_part(self) -> MixtureDataset:
        """Return each part's held-out windows, perhaps none of a small part, or all windows."""
        parts = tuple(
            # A part without held-out windows stays as it is, with `held_out` 0. `_place` then never
            # selects it.
            part if self.held_out and not part.held_out else part.held_out_part()
            for part in self.parts
        )
        return replace(
            self,
            parts=parts,
            held_out=sum(part.held_out for part in parts),
            evaluates=True,
        )

    def _place(self, sample: int) -> tuple[int, int]:
        """Return the part of the n-th sample, and its number in that part."""
        # Evaluation has its own order with seed 0, so runs with other seeds measure the same
        # samples in the same order.
        if self.evaluates:
            epoch, position = divmod(sample, self.held_out)
            sizes = [part.held_out for part in self.parts]
            slot = permuted(position, count=self.held_out, seed=0, epoch=0)
            part, inside = _slot(slot, sizes)
            return part, epoch * sizes[part] + inside
        # `number` is the round. Each round has exactly `counts[part]` samples of a part, so the
        # offset in the part is a product.
        number, position = divmod(sample, ROUND)
        slot = permuted(position, count=ROUND, seed=self.seed, epoch=number)
        part, inside = _slot(slot, self.counts)
        # No sum over earlier samples is needed: a resumed run finds its sample in constant time.
        return part, number * self.counts[part] + inside


def dealt(shares: Sequence[float], *, names: Sequence[str]) -> tuple[int, ...]:
    """Return the number of samples of each part in a round, by largest remainders.

    Raises:
        ConfigError: a share is too small to be in each round.
    """
    exact = [share * ROUND for share in shares]
    # Rounding down leaves fewer than `len(shares)` samples, which go to the largest remainders.
    counts = [int(amount) for amount in exact]
    # The key is the negative remainder, so the largest come first. Equal remainders go to the
    # earlier part, so all ranks agree.
    left = sorted(range(len(exact)), key=lambda number: (counts[number] - exact[number], number))
    for number in left[: ROUND - sum(counts)]:
        counts[number] += 1
    # A part with a count of 0 would never be seen. The error is clearer than a silent omission.
    for name, count, share in zip(names, counts, shares, strict=True):
        if not count:
            raise ConfigError(
                f"data.mixture: {name} would be {share:.2g} of the samples; the least is 1 of"
                f" {ROUND}"
            )
    return tuple(counts)


def _slot(slot: int, sizes: Sequence[int]) -> tuple[int, int]:
    """Return the part of a place among all parts' places, and its number in that part."""
    for part, end in enumerate(accumulate(sizes)):
        if slot < end:
            return part, slot - end + sizes[part]
    raise AssertionError(f"{slot} is beyond {sum(sizes)}")  # permuted gives none


def _runs(places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, range]]:
    """Join neighbouring samples of one part that follow each other there."""
    numbered = enumerate(places)
    # The difference of sample number and place is constant along a run of neighbours.
    for (part, _), group in groupby(numbered, key=lambda at: (at[1][0], at[1][1] - at[0])):
        inside = [place for _, (_, place) in group]
        yield part, range(inside[0], inside[-1] + 1)


def _joined(pieces: list[npt.NDArray[np.int32] | None]) -> npt.NDArray[np.int32] | None:
    # All parts have the same packing, so either all batches have documents or none.
    arrays = [piece for piece in pieces if piece is not None]
    return np.concatenate(arrays) if arrays else None
