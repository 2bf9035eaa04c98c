"""A tokenizer.json, and the tokens of texts of which a part is learned."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from drumline_contract.buckets.path import AnyPath, read_file
from drumline_contract.config import ConfigError
from drumline_trainer.data.learned_spans import runs_of
from drumline_trainer.data.records.learned_text import LearnedText

TOKENIZER_FILE: Final = "tokenizer.json"
MOST_TOKENIZER_BYTES: Final = 256 << 20
"""Ten times the largest that was published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedDocument:
    """The tokens of a document."""

    tokens: list[int]
    learned: npt.NDArray[np.int64] | None = None
    """Spans of what is learned, of shape N 2, in tokens; None: all of it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTokenizer:
    """A tokenizer with the digest of its file."""

    tokenizer: Any
    sha256: str
    vocabulary: int
    """Number of different tokens."""

    @classmethod
    def of(cls, file: AnyPath) -> LoadedTokenizer:
        """Read it. Raises ConfigError."""
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415 - optional package
        except ImportError as error:
            raise ConfigError(
                "data.tokenizer: needs the package tokenizers; install drumline[trainer-more]"
            ) from error
        try:
            content = read_file(file, limit=MOST_TOKENIZER_BYTES)
        except OSError as error:
            raise ConfigError(f"tokenizer: {file}: {error.strerror}") from error
        try:
            tokenizer = Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises nothing more specific
            raise ConfigError(f"tokenizer: {file} is not a tokenizer.json: {error}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return cls(
            tokenizer=tokenizer,
            sha256=hashlib.sha256(content).hexdigest(),
            vocabulary=max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
        )

    @property
    def special(self) -> frozenset[str]:
        """The texts of its special tokens."""
        added = self.tokenizer.get_added_tokens_decoder().values()
        return frozenset(token.content for token in added if token.special)

    def number_of(self, token: str) -> int | None:
        """The token's number; None where it has none."""
        return self.tokenizer.token_to_id(token)

    def encode(self, texts: Sequence[LearnedText]) -> list[EncodedDocument]:
        """All at once, by as many threads as the library has. No token is added."""
        written = [text.text for text in texts]
        encodings = self.tokenizer.encode_batch(written, add_special_tokens=False)
        return [
            EncodedDocument(tokens=encoding.ids, learned=_learned(text, encoding))
            for text, encoding in zip(texts, encodings, strict=True)
        ]


def _learned(text: LearnedText, encoding: Any) -> npt.NDArray[np.int64] | None:
    """Spans of tokens: those that begin within what is learned."""
    if text.learned is None:
        return None
    begins = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
    mask = np.zeros(len(begins), dtype=bool)
    for start, stop in text.learned:
        mask |= (begins >= start) & (begins < stop)
    return runs_of(mask)
