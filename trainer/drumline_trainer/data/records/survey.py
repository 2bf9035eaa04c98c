"""Statistics of records: counts of documents and tokens, faults, and the first documents.

A job's log and `drumline data show` print the same lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from drumline_contract.config import ConfigError
from drumline_trainer.data.records.tokenizer import (
    EncodedDocument,
    EncodedRecord,
    LoadedTokenizer,
    SpanFault,
)

_SHOWN_DOCUMENTS: Final = 3
_SHOWN_TOKENS: Final = 400
"""Number of tokens above which only the first and the last ones of a document are shown."""
_END_TOKENS: Final = 100
_LEARNED, _SPECIAL, _BOTH, _OTHER, _RESET = (
    "\x1b[32m",
    "\x1b[35m",
    "\x1b[1;35m",
    "\x1b[2m",
    "\x1b[0m",
)


@dataclass(slots=True, kw_only=True)
class DocumentSurvey:
    """Counts over the documents of a source, in the order they are added."""

    documents: int = 0
    tokens: int = 0
    learned: int = 0
    answered: int = 0
    """Documents of which a part is learned: an answer."""
    without_tokens: int = 0
    faults: Counter[SpanFault] = field(default_factory=Counter[SpanFault])
    readings: Counter[str] = field(default_factory=Counter[str])
    """Records that can be read in two ways, by the remark about the chosen way."""
    longest: tuple[int, str] = (0, "")
    """Tokens of the longest document, and its place."""
    lengths: Counter[int] = field(default_factory=Counter[int])
    """Number of documents by their tokens."""
    first: list[tuple[EncodedDocument, str]] = field(
        default_factory=list[tuple[EncodedDocument, str]]
    )
    """The first documents with something to learn, and their places."""

    def add(self, record: EncodedRecord, *, place: str, note: str | None = None) -> None:
        """Count a record. `note` says which of its two readings counts.

        Args:
            record: the encoded record.
            place: file and line.
            note: which of two possible readings counts.
        """
        if note is not None:
            self.readings[note] += 1
        for document in record:
            self.documents += 1
            if not document.tokens:
                self.without_tokens += 1
                continue
            size = len(document.tokens)
            self.tokens += size
            self.lengths[size] += 1
            self.longest = max(self.longest, (size, place), key=lambda pair: pair[0])
            self.faults.update(document.faults)
            learned = int(_learned(document).sum())
            self.learned += learned
            self.answered += learned > 0 and document.learned is not None
            if learned and len(self.first) < _SHOWN_DOCUMENTS:
                self.first.append((document, place))

    def check(self) -> None:
        """Raise ConfigError where no answer ends: the model would not learn to stop."""
        if self.answered and self.faults[SpanFault.ENDLESS] == self.answered:
            raise ConfigError(
                f"data.source: of {self.answered} documents with answers none ends in a stop token,"
                " so the model would not learn to stop: the chat template, or its"
                " {% generation %} marks, end no answer, or the tokenizer names no end token; name"
                " a template that writes the end token after each answer (data.chat_template), or"
                " set eos_token in tokenizer_config.json"
            )

    def notes(self) -> tuple[str, ...]:
        """Return a line for each invariant that some documents break, and for ambiguous records."""
        readings = [f"data: {n} records {note}" for note, n in sorted(self.readings.items())]
        return (*readings, *self._faults())

    def _faults(self) -> tuple[str, ...]:
        return tuple(
            f"data: {count} of {self.documents} documents: {fault}"
            for fault, count in sorted(self.faults.items())
            if fault is not SpanFault.NOTHING_LEARNED  # counted where windows are laid out
        )

    def counts(self, *, sequence_length: int | None = None) -> list[str]:
        """Return lines with the amount of data, and with skipped or cut documents."""
        most, place = self.longest
        lines = [
            f"{self.documents} documents, {self.tokens} tokens, {self.learned} of them learned",
            f"the longest has {most} tokens: {_plain(place)}",
        ]
        if self.without_tokens:
            lines.append(f"left out: {self.without_tokens} documents: they have no token")
        nothing = self.faults[SpanFault.NOTHING_LEARNED]
        if nothing:
            lines.append(f"left out: {nothing} documents: {SpanFault.NOTHING_LEARNED}")
        lines += [note.removeprefix("data: ") for note in self.notes()]
        if sequence_length is not None:
            longer = sum(n for size, n in self.lengths.items() if size > sequence_length + 1)
            if longer:
                lines.append(
                    f"cut, or of pairs left out: {longer} documents are longer than"
                    f" {sequence_length} tokens (data.sequence_length)"
                )
        return lines

    def examples(self, tokenizer: LoadedTokenizer, *, color: bool) -> list[str]:
        """Return the first documents, token by token, with marks on trained and special tokens."""
        if not self.first:
            return []
        legend = (
            f"{_LEARNED}learned{_RESET}, {_OTHER}not learned{_RESET}, {_SPECIAL}special{_RESET},"
            f" {_BOTH}special and learned{_RESET}"
            if color
            else "[[learned]], not learned, <special>; a bar is between two tokens"
        )
        lines = [f"the first {len(self.first)} documents ({legend}):"]
        for document, place in self.first:
            learned = int(_learned(document).sum())
            lines.append(f"{_plain(place)}: {len(document.tokens)} tokens, {learned} learned")
            lines.append("  " + "".join(_shown(document, tokenizer, color=color)))
        return lines


def _learned(document: EncodedDocument) -> np.ndarray:
    """Return whether each token is trained on, bool [tokens]. The first token is never a target."""
    mask = np.full(len(document.tokens), document.learned is None)
    for start, stop in () if document.learned is None else document.learned.tolist():
        mask[start:stop] = True
    mask[:1] = False
    return mask


def _shown(document: EncodedDocument, tokenizer: LoadedTokenizer, *, color: bool) -> Iterator[str]:
    tokens, learned = document.tokens, _learned(document)
    cut = range(_SHOWN_TOKENS - _END_TOKENS, len(tokens) - _END_TOKENS)
    previous = False
    for number, token in enumerate(tokens):
        if number in cut and len(tokens) > _SHOWN_TOKENS:
            if number == cut.start:
                yield f"{']]' if previous and not color else ''} ... {len(cut)} tokens ... "
                previous = False
            continue
        piece, now = _plain(_piece(token, tokenizer)), bool(learned[number])
        if color:
            special = token in tokenizer.special_numbers
            style = (_BOTH if now else _SPECIAL) if special else (_LEARNED if now else _OTHER)
            yield f"{style}{piece}{_RESET}"
            continue
        if number:
            yield "]]" if previous and not now else ""
            yield "|"
        yield "[[" if now and not previous else ""
        yield piece
        previous = now
    if previous and not color:
        yield "]]"


def _piece(token: int, tokenizer: LoadedTokenizer) -> str:
    """Return the text of a token; the space of a word's first piece is kept."""
    text: str = tokenizer.tokenizer.decode([token], skip_special_tokens=False)
    name = tokenizer.tokenizer.id_to_token(token) or ""
    return f" {text}" if name.startswith("\u2581") and not text.startswith(" ") else text


def _plain(text: str) -> str:
    """Escape every character that a terminal obeys."""
    return "".join(
        char if char == " " or char.isprintable() else char.encode("unicode_escape").decode()
        for char in text
    )
