"""Whole documents in windows: what conversations and other records are learned from.

A document's tokens are inputs but for the last, and targets but for the first. A window holds one
document, or as many as fit (`packing`), each with attention and positions of its own
(`models.documents`); the rest of it is padding, which no target asks for and no token sees. A
document that is longer than a window is cut to it. One of which nothing is learned is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drumline_contract.config import ConfigError, ModelConfig
from drumline_trainer.data.dataset import IGNORED, Batch, Dataset
from drumline_trainer.data.packing import best_fit
from drumline_trainer.data.text_dataset import TokenStream, check_tokens

_PADDING = 0
"""A token that every vocabulary has."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowTable:
    """The documents of each window, and the numbers of cut and skipped documents."""

    starts: npt.NDArray[np.int64]
    """First token of each document in the text, int64 [documents]."""
    lengths: npt.NDArray[np.int64]
    """Number of tokens that are used of each document, int64 [documents]."""
    windows: list[list[int]]
    """Numbers of documents."""
    targets: npt.NDArray[np.int64]
    """Predictions of each window that the loss counts."""
    cut: int
    """Documents that are longer than a window."""
    left_out: int
    """Documents of which nothing is learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentDataset(Dataset):
    """Documents of a text in the run's order. Shapes: B samples, S sequence."""

    text: TokenStream
    sequence_length: int
    table: WindowTable

    @classmethod
    def of(
        cls, text: TokenStream, *, sequence_length: int, seed: int, together: bool
    ) -> DocumentDataset:
        """Lay the documents out; `together`: as many in a window as fit.

        Args:
            text: tokens with the limits of documents.
            sequence_length: tokens in a window.
            seed: seed of the order.
            together: whether a window holds several documents.

        Raises:
            ConfigError: there is nothing to learn.
        """
        table = window_table(text, sequence_length=sequence_length, together=together)
        return cls(text=text, sequence_length=sequence_length, seed=seed, table=table)

    @property
    def windows(self) -> int:
        """All there are, held out or not."""
        return len(self.table.windows)

    def batch(self, samples: range) -> Batch:
        """Return inputs and targets [B, S], with the document and the position of each input."""
        # A document of n tokens has n - 1 inputs. Positions after the last one keep padding and the
        # ignored target.
        shape = (len(samples), self.sequence_length)
        inputs_BS = np.full(shape, _PADDING, dtype=np.int64)
        targets_BS = np.full(shape, IGNORED, dtype=np.int64)
        documents_BS = np.zeros(shape, dtype=np.int32)
        positions_BS = np.zeros(shape, dtype=np.int32)
        filled_B = np.zeros(len(samples), dtype=np.int32)
        for row, sample in enumerate(samples):
            # `at` is the next free position of the row and `number` the index of the document in
            # it.
            at = number = 0
            for start, length in self._ranges(sample):
                # One read per document. The mask decides about targets only: tokens that are not
                # learned stay inputs as context.
                tokens = self.text.tokens(start, length)
                here = slice(at, at + length - 1)
                inputs_BS[row, here] = tokens[:-1]
                targets_BS[row, here] = np.where(self._learned(start, length), tokens[1:], IGNORED)
                documents_BS[row, here] = number
                positions_BS[row, here] = np.arange(length - 1)
                at, number = here.stop, number + 1
            # Padding is one more run. It has its own index, so that no document attends to it.
            documents_BS[row, at:] = number
            filled_B[row] = at
            # Positions of padding count from 0, because `Documents.of` finds runs by position 0.
            positions_BS[row, at:] = np.arange(self.sequence_length - at)
        return Batch(
            inputs=inputs_BS,
            targets=targets_BS,
            documents=documents_BS,
            positions=positions_BS,
            filled=filled_B,
        )

    def target_count(self, samples: range) -> int:
        """Return the number of targets of these samples that the loss counts."""
        # The table has the counts, so a step learns its divisor without reading a token.
        return sum(int(self.table.targets[self.window_at(sample)]) for sample in samples)

    def token_count(self, samples: range) -> int:
        """Return the number of inputs of these samples without padding."""
        return sum(length - 1 for sample in samples for _, length in self._ranges(sample))

    def fingerprint(self) -> str:
        """Digest of the text only: sequence length and packing do not change it."""
        return self.text.fingerprint()

    def check_model(self, model: ModelConfig) -> None:
        """Raise ConfigError for models of images and for too small vocabularies."""
        check_tokens(self.text, model)

    def notes(self) -> tuple[str, ...]:
        """Describe how full the windows are, and which documents are cut or skipped."""
        table = self.table
        documents = sum(len(window) for window in table.windows)
        # A document of n tokens fills n - 1 positions, so one token per document is subtracted.
        filled = (table.lengths.sum() - documents) / (self.windows * self.sequence_length)
        line = (
            f"data: {documents} documents in {self.windows} windows of {self.sequence_length}"
            f" tokens, {filled:.0%} filled; {int(table.targets.sum())} tokens are learned"
        )
        if table.cut:
            line += f"; longer and cut to a window: {table.cut}"
        if table.left_out:
            line += f"; left out, as nothing of them is learned: {table.left_out}"
        return (line, *self.remarks)

    def prefetch(self, samples: range) -> None:
        """Begin to fetch these samples from remote storage."""
        self.text.prefetch(piece for sample in samples for piece in self._ranges(sample))

    def close(self) -> None:
        """Close the text."""
        self.text.close()

    def _ranges(self, sample: int) -> Iterator[tuple[int, int]]:
        """Start and length of each document of a sample."""
        for document in self.table.windows[self.window_at(sample)]:
            yield int(self.table.starts[document]), int(self.table.lengths[document])

    def _learned(self, start: int, length: int) -> npt.NDArray[np.bool_]:
        """Return whether tokens of a document after the first are trained on, bool [length - 1]."""
        if self.text.learned is None:
            return np.ones(length - 1, dtype=bool)
        return self.text.learned.mask(start + 1, start + length)


def window_table(text: TokenStream, *, sequence_length: int, together: bool) -> WindowTable:
    """Lay out the documents of a text. Raises ConfigError if there is nothing to learn.

    Args:
        text: tokens with the limits of documents.
        sequence_length: tokens in a window.
        together: whether a window holds several documents.
    """
    ends = text.document_ends()
    # Phase 1: documents. A window of S inputs holds the first S + 1 tokens of a document.
    starts = np.concatenate([np.zeros(1, dtype=np.int64), ends[:-1]])
    lengths = np.minimum(ends - starts, sequence_length + 1)
    # Phase 2: targets. A cut may remove all learned tokens, so targets are counted after it.
    targets = learned_targets(text, starts, lengths)
    # A document without a target costs time and changes no gradient.
    useful = targets > 0
    if not useful.any():
        raise ConfigError(
            f"data.source: of {len(ends)} documents none has a token to learn in its first"
            f" {sequence_length}; lengthen data.sequence_length, or look at the data"
        )
    # Skipped documents do not count as cut: the message names each document once.
    cut = int((ends - starts > sequence_length + 1)[useful].sum())
    starts, lengths, targets = starts[useful], lengths[useful], targets[useful]
    # Phase 3: windows. Best fit takes numbers of inputs, and an input is not needed for the last
    # token.
    if together:
        windows = best_fit(lengths - 1, capacity=sequence_length)
    else:
        windows = [[document] for document in range(len(lengths))]
    return WindowTable(
        starts=starts,
        lengths=lengths,
        windows=windows,
        targets=np.array([targets[window].sum() for window in windows], dtype=np.int64),
        cut=cut,
        left_out=len(ends) - int(useful.sum()),
    )


def learned_targets(
    text: TokenStream, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return the number of trained tokens but the first of each document, int64 [documents].

    Args:
        text: tokens with the limits of documents.
        starts: first token of each document, int64 [documents].
        lengths: tokens of each document, int64 [documents].
    """
    if text.learned is None:
        return lengths - 1
    # The first token of a document is never a target, so the count begins at `starts + 1`.
    return text.learned.before(starts + lengths) - text.learned.before(starts + 1)
