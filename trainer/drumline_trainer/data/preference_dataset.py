"""Pairs of answers in windows: what preferences are learned from (`models.preferences`).

The texts come in pairs, the chosen answer's before the rejected one's, each with its prompt. Both
of a pair are neighbouring documents of one window, which holds one pair or as many as fit. No
answer is cut: half of one says nothing of which is better. What the loss counts are pairs.
"""

from __future__ import annotations

import numpy as np

from drumline_contract.config import ConfigError
from drumline_trainer.data.document_dataset import DocumentDataset, WindowTable, learned_targets
from drumline_trainer.data.packing import best_fit
from drumline_trainer.data.text_dataset import TokenStream


class PreferenceDataset(DocumentDataset):
    """Pairs of documents in the run's order."""

    @classmethod
    def of(
        cls, text: TokenStream, *, sequence_length: int, seed: int, together: bool
    ) -> PreferenceDataset:
        """Lay the pairs out; `together`: as many in a window as fit. Raises ConfigError.

        Args:
            text: tokens of chosen and rejected answers.
            sequence_length: tokens in a window.
            seed: seed of the order.
            together: whether a window holds several pairs.
        """
        table = pair_table(text, sequence_length=sequence_length, together=together)
        return cls(text=text, sequence_length=sequence_length, seed=seed, table=table)

    def notes(self) -> tuple[str, ...]:
        """Describe how full the windows are, and how many pairs are skipped."""
        pairs = int(self.table.targets.sum())
        # A document of n tokens has n - 1 inputs, so one per document is subtracted.
        inputs = sum(
            self.table.lengths[window].sum() - len(window) for window in self.table.windows
        )
        line = (
            f"data: {pairs} pairs in {self.windows} windows of {self.sequence_length} tokens,"
            f" {inputs / (self.windows * self.sequence_length):.0%} filled"
        )
        if self.table.left_out:
            line += f"; left out, as too long or without an answer: {self.table.left_out}"
        return (line, *self.remarks)


def pair_table(text: TokenStream, *, sequence_length: int, together: bool) -> WindowTable:
    """Lay out the pairs of a text. Raises ConfigError if there is nothing to learn.

    Args:
        text: tokens of chosen and rejected answers.
        sequence_length: tokens in a window.
        together: whether a window holds several pairs.
    """
    ends = text.document_ends()
    starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])
    lengths = ends - starts
    # [documents] becomes [pairs, 2]. A pair counts only if both answers have a target.
    answered = (learned_targets(text, starts, lengths) > 0).reshape(-1, 2).all(axis=1)
    # The prompt is counted twice, because each answer is a document with its own copy of it.
    sizes = (lengths - 1).reshape(-1, 2).sum(axis=1)
    # Pairs that do not fit are left out. A cut answer has a smaller log-probability only because it
    # is shorter.
    pairs = np.flatnonzero(answered & (sizes <= sequence_length))
    if not len(pairs):
        raise ConfigError(
            f"data.source: of {len(sizes)} pairs none fits into {sequence_length} tokens with both"
            " its answers; lengthen data.sequence_length, or look at the data"
        )
    if together:
        # Best fit places pairs as a whole, by the sum of their inputs.
        windows = best_fit(sizes[pairs], capacity=sequence_length)
    else:
        windows = [[pair] for pair in range(len(pairs))]
    return WindowTable(
        starts=starts,
        lengths=lengths,
        windows=[
            # Pair p is the documents 2p (chosen) and 2p + 1 (rejected). They stay neighbours in the
            # window.
            [2 * int(pairs[pair]) + side for pair in window for side in range(2)]
            for window in windows
        ],
        # The loss counts pairs, not tokens.
        targets=np.array([len(window) for window in windows], dtype=np.int64),
        cut=0,
        left_out=len(sizes) - len(pairs),
    )
