from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_contract.config.data import Packing
from drumline_trainer.data.corpus import Corpus
from drumline_trainer.data.cursor import micro_batch_ranges
from drumline_trainer.data.dataset import IGNORED
from drumline_trainer.data.text_dataset import TextDataset


def of_documents(folder: Path, lengths: list[int]) -> Corpus:
    """Each document is one letter again and again: where a letter changes, a document begins."""
    names = [f"{number:03d}" for number in range(len(lengths))]
    for number, (name, length) in enumerate(zip(names, lengths, strict=True)):
        (folder / name).write_bytes(bytes([number]) * length)
    ends = tuple(int(end) for end in np.cumsum(lengths))
    return Corpus(folder=folder, paths=tuple(names), ends=ends)


def test_each_byte_is_a_target_once_per_epoch(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(1, 203)))
    corpus = Corpus(folder=tmp_path, paths=("a",), ends=(202,))
    dataset = TextDataset(text=corpus, sequence_length=10, seed=3)
    assert dataset.windows == 20
    batch = dataset.batch(range(20))
    assert sorted(batch.targets.flatten().tolist()) == list(range(2, 202))
    assert (batch.targets == batch.inputs + 1).all()
    assert batch.documents is batch.positions is None
    assert dataset.target_count(range(20)) == 200


DOCUMENTS = st.lists(st.integers(1, 9), min_size=3, max_size=30).filter(lambda n: sum(n) > 6)


@settings(deadline=None, max_examples=40)
@given(lengths=DOCUMENTS, sequence_length=st.integers(1, 6))
def test_no_target_crosses_into_another_document(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], sequence_length: int
) -> None:
    corpus = of_documents(tmp_path_factory.mktemp("text"), lengths)
    stream = TextDataset(text=corpus, sequence_length=sequence_length, seed=1)
    packed, separate = (
        TextDataset(text=corpus, sequence_length=sequence_length, seed=1, packing=packing)
        for packing in (Packing.DOCUMENTS, Packing.SEPARATE)
    )
    samples = range(stream.windows)
    plain, batch = stream.batch(samples), separate.batch(samples)
    mixed = packed.batch(samples)
    assert mixed.documents is mixed.positions is None
    assert (mixed.targets == batch.targets).all()
    assert separate.target_count(samples) == packed.target_count(samples)
    assert (batch.inputs == plain.inputs).all()
    crosses = plain.inputs != plain.targets
    assert (batch.targets == np.where(crosses, IGNORED, plain.targets)).all()
    assert packed.target_count(samples) == (batch.targets != IGNORED).sum()
    for sample in samples:
        count = packed.target_count(range(sample, sample + 1))
        assert count == (batch.targets[sample] != IGNORED).sum()
    assert batch.documents is not None
    assert batch.positions is not None
    for row, documents, positions in zip(
        batch.inputs, batch.documents, batch.positions, strict=True
    ):
        begins = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist()]
        expected = np.searchsorted(begins, np.arange(len(row)), side="right") - 1
        assert documents.tolist() == expected.tolist()
        assert positions.tolist() == [i - begins[d] for i, d in enumerate(documents)]


def test_one_rank_reads_nothing_of_another(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(250)))
    corpus = Corpus(folder=tmp_path, paths=("a",), ends=(250,))
    reads: list[tuple[int, int]] = []

    class Recorded(Corpus):
        def read(self, start: int, length: int) -> bytes:
            reads.append((start, length))
            return corpus.read(start, length)

    text = Recorded(folder=tmp_path, paths=("a",), ends=(250,))
    dataset = TextDataset(text=text, sequence_length=8, seed=0)
    by_rank: list[list[tuple[int, int]]] = []
    for rank in range(3):
        reads.clear()
        for part in micro_batch_ranges(6, batch=12, rank=rank, world_size=3, size=3):
            dataset.batch(part)
        by_rank.append(list(reads))
    every = [(dataset.window_at(sample) * 8, 9) for sample in range(6, 18)]
    assert by_rank == [every[0:4], every[4:8], every[8:12]]
