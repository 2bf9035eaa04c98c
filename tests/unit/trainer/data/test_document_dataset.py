from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_contract.config import ConfigError
from drumline_trainer.data.dataset import IGNORED
from drumline_trainer.data.document_dataset import DocumentDataset
from drumline_trainer.data.learned_spans import LearnedSpans, runs_of
from drumline_trainer.data.record_text import MemoryText
from drumline_trainer.models.documents import Documents
from tests.texts import missing

DOCUMENTS = st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=20)
"""Of each token whether it is learned."""


def text_of(documents: list[list[bool]], *, masked: bool = True) -> MemoryText:
    """The n-th token is n + 1."""
    flat = np.array([bit for document in documents for bit in document], dtype=bool)
    return MemoryText(
        all_tokens=np.arange(1, len(flat) + 1, dtype=np.int32),
        ends=np.cumsum([len(document) for document in documents]),
        learned=LearnedSpans.of(runs_of(flat)) if masked else None,
        vocabulary=len(flat) + 1,
        tokenizer_sha256=None,
    )


def expected(documents: list[list[bool]], *, masked: bool, sequence_length: int) -> set[int]:
    """Tokens that are learned: not a document's first, none beyond a window."""
    tokens: set[int] = set()
    start = 1
    for document in documents:
        kept = range(1, min(len(document), sequence_length + 1))
        tokens |= {start + n for n in kept if document[n] or not masked}
        start += len(document)
    return tokens


@settings(deadline=None, max_examples=80)
@given(
    documents=DOCUMENTS,
    sequence_length=st.integers(1, 7),
    together=st.booleans(),
    masked=st.booleans(),
    epochs=st.integers(1, 2),
)
def test_every_learned_token_is_a_target_once_an_epoch(
    documents: list[list[bool]],
    sequence_length: int,
    together: bool,
    masked: bool,
    epochs: int,
) -> None:
    text = text_of(documents, masked=masked)
    wanted = expected(documents, masked=masked, sequence_length=sequence_length)
    if not wanted:
        with pytest.raises(ConfigError, match="none has a token to learn"):
            DocumentDataset.of(text, sequence_length=sequence_length, seed=3, together=together)
        return
    dataset = DocumentDataset.of(text, sequence_length=sequence_length, seed=3, together=together)
    samples = range(epochs * dataset.windows)
    batch = dataset.batch(samples)
    counts = Counter(batch.targets[batch.targets != IGNORED].tolist())
    assert counts == dict.fromkeys(wanted, epochs)
    assert dataset.target_count(samples) == epochs * len(wanted)
    assert all(dataset.target_count(range(n, n + 1)) > 0 for n in samples)
    assert batch.filled is not None
    assert dataset.token_count(samples) == batch.filled.sum()
    places = np.arange(sequence_length)
    assert not batch.inputs[places >= batch.filled[:, np.newaxis]].any()
    # a target follows its input within one document, and positions count from its begin
    learned = batch.targets != IGNORED
    assert (batch.targets[learned] == batch.inputs[learned] + 1).all()
    assert batch.documents is not None
    assert batch.positions is not None
    starts = {0, *np.cumsum([len(document) for document in documents]).tolist()}
    first = batch.inputs - 1 - batch.positions
    assert {int(n) for n in first[batch.inputs > 0]} <= starts
    # attention sees the same documents: runs that lie end to end over the whole window
    runs = Documents.of(batch.documents, batch.positions).runs()
    for row, spans in enumerate(runs):
        begins = [span.start for span in spans]
        assert begins == np.flatnonzero(batch.positions[row] == 0).tolist()
        if not together:
            assert len(spans) <= 2


def test_what_is_cut_and_left_out_is_said() -> None:
    documents = [[True] * 9, [True] * 3, [False] * 4, [True]]
    dataset = DocumentDataset.of(text_of(documents), sequence_length=6, seed=0, together=True)
    [note] = dataset.notes()
    assert not missing(note, "2 documents", "2 windows", "6 tokens", "67%", "8 tokens", "1")


def test_the_rest_of_a_window_is_a_document_of_its_own_without_targets() -> None:
    dataset = DocumentDataset.of(
        text_of([[True] * 3, [True] * 4]), sequence_length=7, seed=0, together=True
    )
    batch = dataset.batch(range(1))
    assert batch.inputs.tolist() == [[4, 5, 6, 1, 2, 0, 0]]
    assert batch.targets.tolist() == [[5, 6, 7, 2, 3, IGNORED, IGNORED]]
    assert batch.documents is not None
    assert batch.documents.tolist() == [[0, 0, 0, 1, 1, 2, 2]]
