"""Documents as rows: every token keeps its place, and its document."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from drumline_trainer.models.documents import Documents
from drumline_trainer.models.transformers.documents import DocumentRows, sees_documents_apart

LENGTHS = st.integers(1, 12).flatmap(
    lambda length: st.lists(
        st.lists(st.integers(1, length), min_size=1).map(lambda parts: cut(parts, length)),
        min_size=1,
        max_size=4,
    )
)


def cut(parts: list[int], length: int) -> list[int]:
    """Lengths of documents that fill a window."""
    ends = sorted({end for end in np.cumsum(parts) if end < length})
    return list(np.diff([0, *ends, length]))


def documents_of(windows: list[list[int]]) -> Documents:
    ids = [np.repeat(np.arange(len(parts), dtype=np.int32), parts) for parts in windows]
    places = [np.concatenate([np.arange(n, dtype=np.int32) for n in parts]) for parts in windows]
    return Documents.of(np.stack(ids), np.stack(places))


@given(LENGTHS)
def test_rows_are_the_documents_and_come_back_to_their_places(windows: list[list[int]]) -> None:
    documents = documents_of(windows)
    inputs = torch.arange(1, documents.since_begin.numel() + 1).view_as(documents.since_begin)
    rows = DocumentRows.of(documents)
    made = rows.rows(inputs)
    flat, at = inputs.flatten(), 0
    lengths = [length for parts in windows for length in parts]
    assert made.shape == (len(lengths), max(lengths))
    for row, length in zip(made, lengths, strict=True):
        assert row.tolist() == [*flat[at : at + length].tolist(), *[0] * (max(lengths) - length)]
        at += length
    logits = made.unsqueeze(-1).repeat(1, 1, 3)
    assert torch.equal(rows.windows(logits), inputs.unsqueeze(-1).repeat(1, 1, 3))


@pytest.mark.parametrize(
    ("kind", "apart"),
    [("llama", True), ("mistral", True), ("mamba", False), ("afmoe", False), ("bloom", False)],
)
def test_only_masks_that_are_given_positions_keep_documents_apart(kind: str, apart: bool) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 32, "pad_token_id": 0}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    config = AutoConfig.for_model(kind, **sizes)
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config)
    assert sees_documents_apart(module) is apart
