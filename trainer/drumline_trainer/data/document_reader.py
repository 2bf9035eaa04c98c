"""The documents of text files, with the position after each, from which reading can resume.

A file is a document; in a `.jsonl` file each line is a document, an object with a field of text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from drumline_trainer.config import ConfigError
from drumline_trainer.data.corpus import Corpus

LINES_SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True, order=True)
class DocumentPosition:
    """A position between two documents."""

    file: int = 0
    """Number of files of the corpus before it."""
    offset: int = 0
    """Number of bytes of this file before it."""


@dataclass(frozen=True, slots=True)
class TextDocument:
    """A text, and the position after it."""

    text: str
    after: DocumentPosition


def read_documents(
    corpus: Corpus, *, field: str, start: DocumentPosition
) -> Iterator[TextDocument]:
    """The documents from `start` on.

    Raises:
        ConfigError: text that is not UTF-8, or a line that is not such an object.
    """
    for number in range(start.file, len(corpus.paths)):
        path = corpus.folder / corpus.paths[number]
        if path.suffix == LINES_SUFFIX:
            offset = start.offset if number == start.file else 0
            yield from _lines(path, number, offset=offset, field=field)
        else:
            yield TextDocument(
                _decoded(path.read_bytes(), path, at=0), DocumentPosition(number + 1)
            )


def _lines(path: Path, number: int, *, offset: int, field: str) -> Iterator[TextDocument]:
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            at, offset = offset, offset + len(line)
            if line.strip():
                text = _field(_decoded(line, path, at=at), field, path=path, at=at)
                yield TextDocument(text, DocumentPosition(number, offset))


def _decoded(content: bytes, path: Path, *, at: int) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"source: {path} is not UTF-8 at byte {at + error.start}; convert it, or leave it out"
            " by --pattern"
        ) from error


def _field(line: str, field: str, *, path: Path, at: int) -> str:
    try:
        text = json.loads(line)[field]
    except (ValueError, TypeError, LookupError) as error:
        raise ConfigError(
            f"source: the line of {path} at byte {at} is no JSON object with a field {field!r}"
        ) from error
    if not isinstance(text, str):
        raise ConfigError(f"source: {field!r} of the line of {path} at byte {at} is not a text")
    return text
