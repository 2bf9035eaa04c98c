"""A gang's life as the data sees it: who reads what, and what is learnt how often. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_contract.config.data import Packing
from drumline_trainer.data.cursor import micro_batch_ranges, rank_samples
from drumline_trainer.data.dataset import IGNORED
from drumline_trainer.data.learned_spans import LearnedSpans
from drumline_trainer.data.text_dataset import TextDataset


@dataclass(frozen=True, kw_only=True)
class Numbered:
    """A text whose n-th token is n, and what was read of it."""

    size: int
    starts: npt.NDArray[np.int64]
    """Of the documents."""
    reads: list[range] = field(default_factory=list)

    @property
    def vocabulary(self) -> int:
        return self.size

    @property
    def tokenizer_sha256(self) -> str | None:
        return None

    def tokens(self, start: int, length: int) -> npt.NDArray[np.int64]:
        assert start + length <= self.size
        self.reads.append(range(start, start + length))
        return np.arange(start, start + length)

    def document_starts(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        return self.starts[(start <= self.starts) & (self.starts < stop)]

    @property
    def learned(self) -> LearnedSpans | None:
        return None

    def document_ends(self) -> npt.NDArray[np.int64]:
        return np.append(self.starts[1:], self.size)

    def fingerprint(self) -> str:
        return "numbered"

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        del ranges

    def close(self) -> None:
        pass


MEMBERSHIPS = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 3, 4, 6]),
        st.integers(1, 4),
        st.one_of(st.none(), st.integers(1, 4)),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=5,
)
"""Ranks, samples of each in a step, samples of a micro-batch, steps until the next restart."""
DOCUMENTS = st.lists(st.integers(1, 9), min_size=4, max_size=25).filter(lambda n: sum(n) > 12)


@dataclass
class Life:
    """What all ranks together did, in the order of the samples."""

    inputs: list[npt.NDArray[np.int64]] = field(default_factory=list)
    targets: list[npt.NDArray[np.int64]] = field(default_factory=list)
    counted: int = 0


def lived(
    memberships: list[tuple[int, int, int | None, int]],
    *,
    lengths: list[int],
    sequence_length: int,
    packing: Packing,
) -> tuple[Life, TextDataset]:
    """Every rank opens the text anew at each restart and knows the cursor alone."""
    starts = np.cumsum([0, *lengths[:-1]])
    life, cursor = Life(), 0

    def opened() -> TextDataset:
        text = Numbered(size=sum(lengths), starts=starts)
        return TextDataset(text=text, sequence_length=sequence_length, seed=4, packing=packing)

    for ranks, share, size, steps in memberships:
        gang, batch = [opened() for _ in range(ranks)], ranks * share
        for _ in range(steps):
            for rank, dataset in enumerate(gang):
                cut = {"batch": batch, "rank": rank, "world_size": ranks}
                samples = rank_samples(cursor, **cut)
                text = dataset.text
                assert isinstance(text, Numbered)
                text.reads.clear()
                for part in micro_batch_ranges(cursor, **cut, size=size):
                    got = dataset.batch(part)
                    life.inputs += list(got.inputs)
                    life.targets += list(got.targets)
                # nothing but its own windows
                begins = [dataset.window_at(n) * sequence_length for n in samples]
                assert text.reads == [range(b, b + sequence_length + 1) for b in begins]
            life.counted += gang[0].target_count(range(cursor, cursor + batch))
            cursor += batch
    return life, opened()


@settings(deadline=None, max_examples=60)
@given(
    memberships=MEMBERSHIPS,
    lengths=DOCUMENTS,
    sequence_length=st.integers(1, 6),
    packing=st.sampled_from((Packing.STREAM, Packing.DOCUMENTS, Packing.SEPARATE)),
)
def test_every_token_is_learnt_once_an_epoch_whatever_becomes_of_the_ranks(
    memberships: list[tuple[int, int, int | None, int]],
    lengths: list[int],
    sequence_length: int,
    packing: Packing,
) -> None:
    life, dataset = lived(
        memberships, lengths=lengths, sequence_length=sequence_length, packing=packing
    )
    windows, starts = dataset.windows, set(np.cumsum([0, *lengths]).tolist())
    learnable = set(range(1, windows * sequence_length + 1))
    if packing is not Packing.STREAM:
        learnable -= starts
    for first in range(0, len(life.targets), windows):
        epoch = np.concatenate(life.targets[first : first + windows])
        learnt = Counter(epoch[epoch != IGNORED].tolist())
        assert max(learnt.values(), default=1) == 1
        whole = len(life.targets) >= first + windows
        assert (set(learnt) == learnable) if whole else (set(learnt) <= learnable)
    targets = np.concatenate(life.targets)
    assert life.counted == int((targets != IGNORED).sum())
    inputs = np.concatenate(life.inputs)
    assert ((targets == inputs + 1) | (targets == IGNORED)).all()


@settings(deadline=None, max_examples=40)
@given(memberships=MEMBERSHIPS, lengths=DOCUMENTS, sequence_length=st.integers(1, 6))
def test_the_stream_of_samples_is_that_of_one_rank_that_never_stopped(
    memberships: list[tuple[int, int, int | None, int]],
    lengths: list[int],
    sequence_length: int,
) -> None:
    asked = {"lengths": lengths, "sequence_length": sequence_length, "packing": Packing.SEPARATE}
    life, dataset = lived(memberships, **asked)
    alone = dataset.batch(range(len(life.inputs)))
    assert (np.stack(life.inputs) == alone.inputs).all()
    assert (np.stack(life.targets) == alone.targets).all()
