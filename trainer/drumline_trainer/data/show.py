"""`data show`: what a run would make of records, before a GPU is asked for.

The documents are counted and not kept, so a file may be of any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from drumline_contract.buckets.path import AnyPath
from drumline_contract.config import ConfigError, DataConfig
from drumline_trainer.data.corpus import open_corpus
from drumline_trainer.data.record_text import RecordReader, name_notes, records_of
from drumline_trainer.data.records.kinds import DEFAULT_FIELD
from drumline_trainer.data.records.survey import DocumentSurvey
from drumline_trainer.data.records.tokenizer import TOKENIZER_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    """Options of `data show`."""

    source: Path
    """A file, or a folder of files."""
    model: AnyPath
    """Folder with a tokenizer.json."""
    pattern: str = "**/*"
    field: str = DEFAULT_FIELD
    chat_template: str | None = None
    sequence_length: int | None = None
    """Tokens of a window: longer documents are counted. None: they are not."""
    color: bool = False


def show(options: ShowOptions) -> Iterator[str]:
    """Yield lines about the documents: counts, skipped ones with reasons, and the first documents.

    Raises:
        ConfigError: a record, the template or the tokenizer cannot be used, or no answer ends.
    """
    config = DataConfig(
        source=str(options.source.absolute()),
        pattern=options.pattern,
        field=options.field,
        chat_template=options.chat_template,
    )
    file = options.model / TOKENIZER_FILE
    if not file.is_file():
        raise ConfigError(f"--model: {options.model} has no {TOKENIZER_FILE}")
    corpus = open_corpus(config)
    # Without records the corpus is shown as text, one document per file.
    reader = RecordReader.of(records_of(corpus) or corpus, config, tokenizer_file=file)
    survey = DocumentSurvey()
    for documents, text in reader.read():
        survey.add(documents, place=text.place, note=text.note)
    # Counts first: `check` raises at the end, after the user has seen them.
    yield from survey.counts(sequence_length=options.sequence_length)
    yield from name_notes(reader.corpus)
    yield from survey.examples(reader.tokenizer, color=options.color)
    survey.check()
