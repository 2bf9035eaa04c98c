"""A tokenizer.json, and the tokens of texts of which a part is learned.

The begin token of a text is the one that the tokenizer's own post-processor writes, as in
transformers, and never one that a configuration only names. Nothing is added twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, takewhile
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from drumline_contract.buckets.path import AnyPath, read_file
from drumline_contract.config import ConfigError
from drumline_contract.regular_files import LFS_POINTER, LFS_WORDS
from drumline_trainer.data.learned_spans import runs_of
from drumline_trainer.data.records.answer_spans import Ends
from drumline_trainer.data.records.learned_text import LearnedText, TextRecord
from drumline_trainer.data.records.template_files import (
    added_tokens_of,
    older_added_tokens_of,
    special_entries_of,
    special_tokens_of,
    splits_special_tokens,
    stop_numbers_of,
)
from drumline_trainer.data.records.tokenizer_classes import build_anew

TOKENIZER_FILE: Final = "tokenizer.json"
MAX_TOKENIZER_BYTES: Final = 256 << 20
"""Ten times the largest that was published."""
_ADDED_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")
_PROBE: Final = "a"
"""A text between the tokens that a post-processor writes."""


class SpanFault(StrEnum):
    """An invariant that a document with answers does not hold."""

    NOTHING_LEARNED = "nothing of them is learned"
    ENDLESS = "no answer ends in a stop token"
    SOME_ENDLESS = "an answer does not end in a stop token"
    STRADDLING = "a token holds the end of the prompt and the start of the answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedDocument:
    """The tokens of a document."""

    tokens: list[int]
    learned: npt.NDArray[np.int64] | None = None
    """Spans of what is learned, of shape N 2, in tokens; None: all of it is."""
    faults: frozenset[SpanFault] = frozenset()


EncodedRecord = tuple[EncodedDocument, ...]
"""The document of a record, or the chosen and the rejected one of a pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFrame:
    """The tokens around a text that no template writes."""

    begin: tuple[int, ...] = ()
    """Tokens that the post-processor writes before a text."""
    end: tuple[int, ...] = ()
    """Tokens that it writes after a text, or else the token that ends texts."""
    stops: frozenset[int] = frozenset()
    """Tokens that end an answer."""

    def around(self, tokens: list[int]) -> tuple[list[int], list[int]]:
        """Return the tokens to add before and after a text, unless it already has them."""
        begin, end = list(self.begin), list(self.end)
        return (
            [] if tokens[: len(begin)] == begin else begin,
            [] if end and tokens[-len(end) :] == end else end,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTokenizer:
    """A tokenizer with the digest of its file."""

    tokenizer: Any
    sha256: str
    vocabulary: int
    """Number of different tokens."""
    special: frozenset[str]
    """The texts of its special tokens."""
    special_numbers: frozenset[int] = field(default_factory=frozenset[int])

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
            content = read_file(file, limit=MAX_TOKENIZER_BYTES)
        except OSError as error:
            raise ConfigError(f"tokenizer: {file}: {error.strerror}") from error
        if content.startswith(LFS_POINTER):
            raise ConfigError(f"tokenizer: {file} is {LFS_WORDS}")
        try:
            tokenizer = Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises nothing more specific
            raise ConfigError(f"tokenizer: {file} is not a tokenizer.json: {error}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if getattr(tokenizer.model, "dropout", None):
            tokenizer.model.dropout = None  # random merges would give each rank other tokens
        build_anew(tokenizer, folder=file.parent)
        _add_tokens_of(file.parent, tokenizer)
        added = tokenizer.get_added_tokens_decoder()
        special = {number: token.content for number, token in added.items() if token.special}
        return cls(
            tokenizer=tokenizer,
            sha256=hashlib.sha256(content).hexdigest(),
            vocabulary=max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
            special=frozenset(special.values()),
            special_numbers=frozenset(special),
        )

    def number_of(self, token: str) -> int | None:
        """Return the token's number. None: it is not in the vocabulary."""
        return self.tokenizer.token_to_id(token)

    def frame(self, folder: AnyPath, *, end: int | None = None) -> TextFrame:
        """Return the tokens around a text.

        Args:
            folder: folder of the tokenizer, with the settings of the model.
            end: the token that ends texts. None: the post-processor's, otherwise `eos_token`.

        Raises:
            ConfigError: a file of the folder cannot be read.
        """
        eos = special_tokens_of(folder).get("eos_token")
        named = None if eos is None else self.number_of(eos)
        stops = [number for number in (end, named, *stop_numbers_of(folder)) if number is not None]
        begin, closing = self._written()
        if end is not None:
            closing = (end,)
        elif not closing:
            closing = tuple(stops[:1])
        return TextFrame(begin=begin, end=closing, stops=frozenset((*stops, *closing)))

    def ends(self, frame: TextFrame) -> Ends:
        """Return the texts of the tokens that end answers."""
        texts = map(self.tokenizer.id_to_token, sorted(frame.stops))
        return Ends(stops=tuple(text for text in texts if text), special=self.special)

    def encode_text(self, text: str, *, frame: TextFrame | None) -> list[int]:
        """Return the tokens of a prompt, with the begin token if there is a frame."""
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return tokens if frame is None else [*frame.around(tokens)[0], *tokens]

    def encode(self, records: Sequence[TextRecord], *, frame: TextFrame) -> list[EncodedRecord]:
        """Encode all records at once, by as many threads as the library has.

        A text without a token of its own stays empty.
        """
        texts = list(chain.from_iterable(records))
        encodings = iter(self._batch(text.text for text in texts))
        prompts = iter(self._batch(text.prompt for text in texts if text.prompt is not None))
        encoded: list[EncodedRecord] = []
        for record in records:
            parts = [(text, next(encodings)) for text in record]
            shared = [
                _shared(next(prompts).ids, encoding.ids)
                for text, encoding in parts
                if text.prompt is not None
            ]
            first = min(shared) if shared else None  # of a pair both sides begin there, as in TRL
            encoded.append(tuple(self._document(*part, first=first, frame=frame) for part in parts))
        return encoded

    def _document(
        self, text: LearnedText, encoding: Any, *, first: int | None, frame: TextFrame
    ) -> EncodedDocument:
        tokens: list[int] = encoding.ids
        before, after = frame.around(tokens) if text.framed else ([], [])
        if text.learned is None:
            whole = [*before, *tokens, *after] if tokens else []
            return EncodedDocument(tokens=whole)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        mask = np.zeros(len(tokens), dtype=bool)
        straddling = False
        for number, (start, stop) in enumerate(text.learned):
            own = _within(offsets, start, stop)
            straddling |= bool((offsets[own, 0] < start).any())
            if not number and first is not None:
                last = int(np.flatnonzero(own)[-1]) + 1 if own.any() else len(tokens)
                own[first:last] = True
            mask |= own
        closes = text.framed and any(stop == len(text.text) for _, stop in text.learned)
        mask = np.concatenate([np.zeros(len(before), bool), mask, np.full(len(after), closes)])
        tokens = [*before, *tokens, *after]
        learned = runs_of(mask)
        faults = self._faults(tokens, learned, frame)
        if straddling:
            faults |= {SpanFault.STRADDLING}
        return EncodedDocument(tokens=tokens, learned=learned, faults=faults)

    def _faults(
        self, tokens: list[int], learned: npt.NDArray[np.int64], frame: TextFrame
    ) -> frozenset[SpanFault]:
        if not len(learned):
            return frozenset({SpanFault.NOTHING_LEARNED})
        stops = frame.stops | self.special_numbers
        ended = [self._ends(tokens[start:stop], stops) for start, stop in learned.tolist()]
        if all(ended):
            return frozenset()
        return frozenset({SpanFault.SOME_ENDLESS if any(ended) else SpanFault.ENDLESS})

    def _ends(self, answer: list[int], stops: frozenset[int]) -> bool:
        """Return whether a stop token ends an answer.

        White space may follow it in some templates.
        """
        for token in reversed(answer):
            if token in stops or self.tokenizer.decode([token]).strip():
                return token in stops
        return False

    def _batch(self, texts: Iterable[str]) -> list[Any]:
        return self.tokenizer.encode_batch(list(texts), add_special_tokens=False)

    def _written(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tokens that the post-processor writes before and after a text."""
        if not self.tokenizer.num_special_tokens_to_add(False):
            return (), ()
        encoding = self.tokenizer.encode(_PROBE)
        marked = list(zip(encoding.ids, encoding.special_tokens_mask, strict=True))
        begin = tuple(number for number, _ in takewhile(lambda pair: pair[1], marked))
        end = tuple(number for number, _ in takewhile(lambda pair: pair[1], reversed(marked)))
        return begin, end[::-1]


def _add_tokens_of(folder: AnyPath, tokenizer: Any) -> None:
    """Add the tokens of the files beside a tokenizer to it, as transformers does.

    A token without a known id is not added, because no model has learned it.
    """
    from tokenizers import AddedToken  # noqa: PLC0415 - optional package

    def made(text: object, entry: Mapping[str, Any]) -> Any:
        fields = {name: bool(entry[name]) for name in _ADDED_FLAGS if name in entry}
        return AddedToken(str(text), **fields)

    def added() -> set[str]:
        return {token.content for token in tokenizer.get_added_tokens_decoder().values()}

    own = {repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
    older = older_added_tokens_of(folder)
    for number, entry in (added_tokens_of(folder) or older).items():
        token = made(entry.get("content", ""), entry)
        there = tokenizer.token_to_id(token.content)
        if there is None and number != tokenizer.get_vocab_size(with_added_tokens=True):
            continue
        # the flags in tokenizer.json stand above those of the older file
        if repr(token) not in own and not (older and token.content in added()):
            tokenizer.add_tokens([token])
    known = added()
    tokenizer.add_special_tokens(
        [
            made(text, {**flags, "special": True})
            for text, flags in special_entries_of(folder).items()
            if text not in known and tokenizer.token_to_id(text) is not None
        ]
    )
    tokenizer.encode_special_tokens = splits_special_tokens(folder)


def _within(offsets: npt.NDArray[np.int64], start: int, stop: int) -> npt.NDArray[np.bool_]:
    """Return the tokens with a character of start..stop-1, as a mask bool [tokens].

    Args:
        offsets: begin and end of each token in the text, int64 [tokens, 2].
        start: first character.
        stop: character after the last.
    """
    begins, ends = offsets[:, 0], offsets[:, 1]
    return (begins < stop) & (np.maximum(ends, begins + 1) > start)


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Count the tokens that both begin with."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
