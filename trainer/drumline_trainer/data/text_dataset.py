"""Windows of text: bytes or tokens laid end to end, cut every `sequence_length`.

A window is `sequence_length + 1` tokens: inputs and, shifted by one, targets. Windows start every
`sequence_length` tokens, so each token is a target once per epoch. Nothing is padded: a document
that does not end in a window continues in the next, which is another sample.

`data.document_dataset` puts whole documents into windows.

`Packing.DOCUMENTS` and `SEPARATE` change no window and no order. They ignore the targets that begin
a document. `SEPARATE` also gives the document of each input, so that attention stays within a
document (`models.documents`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from drumline_contract.config import ConfigError, ModelConfig
from drumline_contract.config.data import Packing
from drumline_contract.config.variants import Family
from drumline_trainer.data.dataset import IGNORED, Batch, Dataset
from drumline_trainer.data.learned_spans import LearnedSpans


class TokenStream(Protocol):
    """Documents laid end to end as one sequence of tokens."""

    @property
    def size(self) -> int:
        """Tokens in all."""
        ...

    @property
    def vocabulary(self) -> int:
        """Number of different tokens; every token is below it."""
        ...

    @property
    def tokenizer_sha256(self) -> str | None:
        """SHA-256 of the tokenizer.json that made the tokens. None: they are bytes."""
        ...

    def tokens(self, start: int, length: int) -> npt.NDArray[np.int64]:
        """Return `length` tokens from `start`; shape [length], int64."""
        ...

    def document_starts(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return ascending positions in start..stop-1 where documents begin; shape [documents]."""
        ...

    @property
    def learned(self) -> LearnedSpans | None:
        """The trained tokens. None: all."""
        ...

    def document_ends(self) -> npt.NDArray[np.int64]:
        """Return the ascending position after each document; shape [documents], int64."""
        ...

    def fingerprint(self) -> str:
        """Digest of the tokens; if it changes, positions refer to other text."""
        ...

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Begin to fetch these (start, length) ranges; they are requested soon."""
        ...

    def close(self) -> None:
        """Close files, connections and threads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDataset(Dataset):
    """Windows of a text in the run's order. Shapes: B samples, S sequence, T = S + 1."""

    text: TokenStream
    sequence_length: int
    packing: Packing = Packing.STREAM

    @property
    def windows(self) -> int:
        """All there are, held out or not."""
        # One token at the end is only a target. A remainder shorter than a window is dropped.
        return (self.text.size - 1) // self.sequence_length

    def tokens(self, samples: range) -> npt.NDArray[np.int64]:
        """Return the samples, int64 [samples, sequence_length + 1]."""
        # The last token of a window is the first input of the next one, so no target is lost
        # between windows.
        length = self.sequence_length + 1
        return np.stack([self.text.tokens(self._start(n), length) for n in samples])

    def batch(self, samples: range) -> Batch:
        """Return inputs and targets [B, S], and for `Packing.SEPARATE` their documents."""
        tokens_BT = self.tokens(samples)
        # [B, T] to [B, S] twice. Both are views of one array.
        inputs_BS, targets_BS = tokens_BT[:, :-1], tokens_BT[:, 1:]
        # Streams do not look up documents at all, which for shards would read a second file.
        if self.packing is Packing.STREAM:
            return Batch(inputs=inputs_BS, targets=targets_BS)
        begins_BT = np.zeros(tokens_BT.shape, dtype=bool)
        for row, sample in enumerate(samples):
            begins_BT[row, self._begins(sample)] = True
        # The first token of a document cannot be predicted from the previous document.
        within_BS = np.where(begins_BT[:, 1:], IGNORED, targets_BS)
        if self.packing is Packing.DOCUMENTS:
            return Batch(inputs=inputs_BS, targets=within_BS)
        return Batch(
            inputs=inputs_BS,
            targets=within_BS,
            # Index of each input's document in its window. Every window starts with index 0,
            # because position 0 is never marked.
            documents=np.cumsum(begins_BT[:, :-1], axis=1, dtype=np.int32),
            positions=_since_begin(begins_BT[:, :-1]),
        )

    def target_count(self, samples: range) -> int:
        """Return the number of targets of these samples that the loss counts."""
        # The count is exact without reading tokens: each begin in positions 1..S removes one
        # target.
        every = len(samples) * self.sequence_length
        if self.packing is Packing.STREAM:
            return every
        return every - sum(len(self._begins(sample)) for sample in samples)

    def token_count(self, samples: range) -> int:
        """Return the number of inputs of these samples. None is padding."""
        return len(samples) * self.sequence_length

    def fingerprint(self) -> str:
        """Digest of the text only: sequence length and packing do not change it."""
        return self.text.fingerprint()

    def check_model(self, model: ModelConfig) -> None:
        """Raise ConfigError for models of images and for too small vocabularies."""
        check_tokens(self.text, model)

    def prefetch(self, samples: range) -> None:
        """Begin to fetch these samples from remote storage."""
        length = self.sequence_length + 1
        self.text.prefetch((self._start(sample), length) for sample in samples)

    def close(self) -> None:
        """Close the text."""
        self.text.close()

    def _start(self, sample: int) -> int:
        return self.window_at(sample) * self.sequence_length

    def _begins(self, sample: int) -> npt.NDArray[np.int64]:
        """Return the positions 1..S of the window at which a document begins.

        Position 0 is never a target.
        """
        start = self._start(sample)
        # The range is shifted by one, because position 0 is an input only. Results are relative to
        # the window.
        return self.text.document_starts(start + 1, start + self.sequence_length + 1) - start


def check_tokens(text: TokenStream, model: ModelConfig) -> None:
    """Raise ConfigError for models of images and for too small vocabularies."""
    if model.family is Family.VIT:
        raise ConfigError("model.family: vit takes labelled images, and data.source is text")
    # Embeddings of numbers above the vocabulary do not exist. Larger models are fine: some are
    # padded to a multiple.
    if text.vocabulary > model.vocab_size:
        raise ConfigError(
            f"model.vocab_size: {model.vocab_size} is less than the {text.vocabulary} tokens of"
            " data.source"
        )


def _since_begin(begins_BS: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    places_S = np.arange(begins_BS.shape[1], dtype=np.int32)
    # A running maximum of the begin positions gives each input the latest begin at or before it.
    last_begin_BS = np.maximum.accumulate(np.where(begins_BS, places_S, 0), axis=1)
    return (places_S - last_begin_BS).astype(np.int32)
