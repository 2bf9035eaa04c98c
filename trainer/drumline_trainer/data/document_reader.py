"""The documents of text files, with the position after each, from which reading can resume.

A file is a document; in a file of records each record is one, an object that a renderer makes a
text of (`data.records`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from drumline_contract.config import ConfigError
from drumline_trainer.data.contents import HEAD_BYTES, other_format
from drumline_trainer.data.corpus import Corpus
from drumline_trainer.data.records.files import (
    JSON_SUFFIX,
    RECORD_SUFFIXES,
    TABLE_SUFFIXES,
    StoredRecord,
    check_is_no_table,
    check_is_text,
    decoded,
    holds_records,
    read_records,
)
from drumline_trainer.data.records.kinds import (
    Record,
    RecordKind,
    kind_of,
    normalized,
)
from drumline_trainer.data.records.learned_text import LearnedText, TextRecord
from drumline_trainer.data.records.rendering import RecordRenderer

BESIDE_RECORDS: Final = frozenset(
    {
        *("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json"),
        *("README.md", ".gitattributes", "LICENSE"),
    }
)
"""Files that a folder with a data set has besides."""


@dataclass(frozen=True, slots=True, order=True)
class DocumentPosition:
    """A position between two documents."""

    file: int = 0
    """Number of files of the corpus before it."""
    offset: int = 0
    """Bytes of this file before it; of Parquet and Arrow, rows."""


@dataclass(frozen=True, slots=True)
class TextDocument:
    """The text of a file or a record, or both texts of a pair, and the position after it."""

    texts: TextRecord
    after: DocumentPosition
    place: str
    """For messages: where in which file."""
    note: str | None = None
    """Remark on a record that can be read in two ways, about the way that was chosen."""

    @property
    def characters(self) -> int:
        """Number of characters of all its texts."""
        return sum(len(text.text) for text in self.texts)


def read_documents(
    corpus: Corpus, *, renderer: RecordRenderer, start: DocumentPosition
) -> Iterator[TextDocument]:
    """Yield the documents from `start`.

    Args:
        corpus: the files.
        renderer: makes texts of records.
        start: position of the first document.

    Raises:
        ConfigError: a text is not UTF-8, or a line is not such a record.
    """
    names = record_names(corpus)
    # Earlier files are skipped without opening them, so a resume costs no reading.
    for number in range(start.file, len(corpus.paths)):
        path = corpus.folder / corpus.paths[number]
        if corpus.paths[number] in names:
            # Only the first file is entered in the middle. All others start at their first record.
            offset = start.offset if number == start.file else 0
            for stored in read_records(path, offset=offset):
                # The position is that after the record, so a saved position never repeats it.
                after = DocumentPosition(number, stored.after)
                texts = _rendered(stored, renderer)
                yield TextDocument(texts, after, stored.place, renderer.note(stored.record))
        else:
            content = path.read_bytes()
            kind = other_format("", content[:HEAD_BYTES])
            if kind is not None:
                raise ConfigError(
                    f"source: {path} is not text but {kind}; leave it out by --pattern"
                )
            text = LearnedText(decoded(content, path, at=0), framed=True)
            # A plain file is one document. Its position is the start of the next file, never an
            # offset within the file.
            yield TextDocument((text,), DocumentPosition(number + 1), str(path))


def record_names(corpus: Corpus) -> frozenset[str]:
    """Return the paths of the files that hold records.

    `.json` files count as records only if the corpus has no other text. Otherwise they are text,
    like any file of a program.

    Raises:
        ConfigError: a file is not a regular one, or has records in another form of JSON.
        OSError: the storage fails.
    """
    # Suffixes such as .jsonl are always records.
    names = frozenset(name for name in corpus.paths if name.lower().endswith(RECORD_SUFFIXES))
    beside = [
        name
        for name in corpus.paths
        if name not in names and PurePosixPath(name).name not in BESIDE_RECORDS
    ]
    # JSON files count only if no other text is there. A source tree has .json files beside its
    # programs.
    if not all(name.lower().endswith((JSON_SUFFIX, *TABLE_SUFFIXES)) for name in beside):
        return names
    for name in (name for name in beside if name.lower().endswith(TABLE_SUFFIXES)):
        check_is_no_table(corpus.folder / name)
    listed = [name for name in beside if name.lower().endswith(JSON_SUFFIX)]
    names |= {name for name in listed if holds_records(corpus.folder / name)}
    for name in listed:
        if name not in names:
            check_is_text(corpus.folder / name)
    return names


def first_kind(corpus: Corpus, *, field: str) -> RecordKind:
    """Read the kind of the first record; text, where there are none.

    Raises:
        ConfigError: it is of no known kind.
    """
    names = record_names(corpus)
    # Files without a record are passed over until one has a record.
    for path in (corpus.folder / name for name in corpus.paths if name in names):
        for stored in read_records(path, offset=0):
            record = _normalized(stored)
            kind = kind_of(record, field=field)
            if kind is None:
                raise ConfigError(
                    f"data.source: the first record of {path}, with the fields"
                    f" {', '.join(map(repr, stored.record)) or 'none'}, has neither a text in"
                    f" {field!r} (data.field) nor 'messages', 'conversations', 'prompt' and"
                    " 'completion', 'instruction' and 'output', or 'chosen' and 'rejected' with a"
                    " 'prompt'"
                )
            return kind
    return RecordKind.TEXT


def _rendered(stored: StoredRecord, renderer: RecordRenderer) -> TextRecord:
    try:
        return renderer.render(stored.record)
    # Rendering runs on untrusted records. Both errors get the place of the record, which the
    # renderer does not know.
    except ValueError as error:
        raise ConfigError(f"source: {stored.place}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"source: {stored.place}: the record is nested too deeply") from error


def _normalized(stored: StoredRecord) -> Record:
    try:
        return normalized(stored.record)
    except ValueError as error:
        raise ConfigError(f"source: {stored.place}: {error}") from error
