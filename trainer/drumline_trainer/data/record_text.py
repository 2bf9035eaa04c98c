"""Records that a run tokenizes when it starts, and keeps in memory as a `TokenStream`.

For fine-tuning data, which is small: at most 64 MiB of files. All ranks make the same tokens of the
same files. `fingerprint` covers the tokens, so a resumed run detects another tokenizer, another
template and edited records alike.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from drumline_contract.buckets.path import AnyPath
from drumline_contract.config import ConfigError, DataConfig
from drumline_contract.regular_files import read_regular
from drumline_trainer.data.corpus import Corpus
from drumline_trainer.data.document_reader import (
    BESIDE_RECORDS,
    DocumentPosition,
    TextDocument,
    first_kind,
    read_documents,
    record_names,
)
from drumline_trainer.data.learned_spans import LearnedSpans, moved
from drumline_trainer.data.records.files import RECORD_SUFFIXES, uncompressed_bytes
from drumline_trainer.data.records.kinds import RecordKind
from drumline_trainer.data.records.leftovers import leftovers
from drumline_trainer.data.records.rendering import RecordRenderer
from drumline_trainer.data.records.survey import DocumentSurvey
from drumline_trainer.data.records.template_files import chat_templates_of
from drumline_trainer.data.records.tokenizer import (
    EncodedDocument,
    EncodedRecord,
    LoadedTokenizer,
    TextFrame,
)
from drumline_trainer.data.splits import TRAINING, parts_of_card, split_in

MOST_BYTES: Final = 64 << 20
BATCH_CHARACTERS: Final = 200_000
_SHOWN_FOLDERS: Final = 4
_SPLITS_FILE: Final = "dataset_dict.json"
_CARD: Final = "README.md"
_MAX_CARD_BYTES: Final = 1 << 20
_MOST_MATCHES: Final = 1_000_000
"""Comparisons of a file with a pattern: about a second."""
_PART: Final = re.compile(r"(.*?)([0-9]{1,9})-of-([0-9]{1,9})(.*)")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryText:
    """Documents end to end, in memory."""

    all_tokens: npt.NDArray[np.int32]
    ends: npt.NDArray[np.int64]
    learned: LearnedSpans | None
    vocabulary: int
    tokenizer_sha256: str | None
    paired: bool = False
    """Documents are pairs, of which the first is preferred."""
    notes: tuple[str, ...] = ()
    """Lines for who reads the run's output: what is unusual in the records."""
    examples: tuple[str, ...] = ()
    """Lines that show the first documents token by token."""

    @property
    def size(self) -> int:
        """Tokens in all."""
        return len(self.all_tokens)

    def tokens(self, start: int, length: int) -> npt.NDArray[np.int64]:
        """Return `length` tokens from `start`; shape [length], int64."""
        return self.all_tokens[start : start + length].astype(np.int64)

    def document_starts(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return positions in start..stop-1 where documents begin; shape [documents], int64."""
        # The first document begins at 0 and has no predecessor, so 0 is prepended and the last end
        # is dropped.
        starts = np.concatenate([np.zeros(1, dtype=np.int64), self.ends[:-1]])
        return starts[(starts >= start) & (starts < stop)]

    def document_ends(self) -> npt.NDArray[np.int64]:
        """Return the position after each document; shape [documents], int64."""
        return self.ends

    def fingerprint(self) -> str:
        """Digest of the tokens, of where documents end and of what is learned."""
        # The digest covers tokens, not files: another tokenizer or template changes it, a renamed
        # file does not.
        digest = xxhash.xxh3_128(self.all_tokens.tobytes())
        digest.update(self.ends.tobytes())
        if self.learned is not None:
            digest.update(self.learned.starts.tobytes() + self.learned.stops.tobytes())
        return digest.hexdigest()

    def prefetch(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Do nothing: all is in memory."""

    def close(self) -> None:
        """Do nothing."""


def records_of(corpus: Corpus, *, with_text: bool = False) -> Corpus | None:
    """Return the files of records among these. None: there are none.

    Args:
        corpus: the files.
        with_text: whether texts may lie beside records. All files are returned then.

    Raises:
        ConfigError: there are also other files, or several splits of a data set.
    """
    left_out = leftovers(corpus.folder, corpus.paths)
    if left_out:
        corpus = corpus.only({*corpus.paths} - left_out)
    known = record_names(corpus)
    names = [name for name in corpus.paths if name in known]
    if not names:
        return None
    other = [
        path
        for path in corpus.paths
        # A README or dataset_info.json beside the records is not text. Any other file makes the
        # intention unclear.
        if path not in known and PurePosixPath(path).name not in BESIDE_RECORDS
    ]
    if other and with_text:
        return corpus
    if other:
        raise ConfigError(
            f"data.source: {corpus.folder} has records ({', '.join(RECORD_SUFFIXES)}) and other"
            f" files ({other[0]}); name one of them in data.pattern, such as '**/*.jsonl'"
        )
    # A data set of the `datasets` library keeps one folder per split. Joining them would train on
    # the test split.
    if _SPLITS_FILE in corpus.paths or (corpus.folder / _SPLITS_FILE).exists():
        splits = sorted({name.partition("/")[0] for name in names})
        if len(splits) > 1:
            raise ConfigError(
                f"data.source: {corpus.folder} is a data set with the splits {', '.join(splits)};"
                f" name the folder of one, such as {corpus.folder / splits[-1]}"
            )
    return corpus.only(names)


def name_notes(corpus: Corpus) -> tuple[str, ...]:
    """Say what names of files tell: several splits or configurations, and parts that are absent."""
    by_names = (*_split_notes(corpus), *_configuration_notes(corpus))
    return (*(by_names or _card_notes(corpus)), *_part_notes(corpus))


def _card_notes(corpus: Corpus) -> Iterator[str]:
    """Yield the splits and configurations of which a README.md says that these files are."""
    try:
        card = read_regular(corpus.folder / _CARD, limit=_MAX_CARD_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return
    listed = [(part, each) for part, these in parts_of_card(card).items() for each in these]
    if len(listed) * len(corpus.paths) > _MOST_MATCHES:
        return
    there = {
        part: name
        for part, pattern in listed
        for name in corpus.paths
        if fnmatchcase(name, pattern.removeprefix("./"))
    }
    if len({*there.values()}) > 1:
        shown = ", ".join(f"{part} ({name})" for part, name in [*there.items()][:_SHOWN_FOLDERS])
        yield (
            f"files that {_CARD} tells apart are read as one: {shown}; name the files of one in"
            " data.pattern"
        )


def _configuration_notes(corpus: Corpus) -> Iterator[str]:
    """Yield the folders that have parts of the same name, such as `main` and `socratic` of GSM8K.

    `datasets` asks for one of them. They often hold the same questions.
    """
    folders_of = defaultdict[tuple[str | None, str], set[str]](set)
    for folder, _, name in (path.rpartition("/") for path in corpus.paths):
        if _PART.fullmatch(name):
            folders_of[split_in(folder), name].add(folder or ".")
    folders = sorted(max(folders_of.values(), key=len, default=set[str]()))
    if len(folders) > 1:
        yield (
            f"{len(folders)} folders have files of the same names and are read as one:"
            f" {', '.join(folders[:_SHOWN_FOLDERS])}; if they are configurations of a data set,"
            f" name one in data.pattern, such as '{folders[-1]}/*'"
        )


def _part_notes(corpus: Corpus) -> Iterator[str]:
    """Yield the parts, such as `train-00002-of-00009.parquet`, of which some are absent."""
    parts: dict[tuple[str, str, str], set[str]] = {}
    for name in corpus.paths:
        if match := _PART.fullmatch(name):
            before, number, total, after = match.groups()
            parts.setdefault((before, total, after), set()).add(number)
    for (before, total, after), numbers in parts.items():
        if len(numbers) < int(total):
            yield f"{len(numbers)} of the {int(total)} files {before}*-of-{total}{after} are read"


def _split_notes(corpus: Corpus) -> tuple[str, ...]:
    """Say that files are several splits of a data set, as `datasets` tells them apart by names."""
    first_of: dict[str, str] = {}
    for name in corpus.paths:
        split = split_in(name)
        if split is not None:
            first_of.setdefault(split, name)
    if TRAINING not in first_of or len(first_of) == 1:
        return ()
    splits = ", ".join(f"{split} ({first_of[split]})" for split in sorted(first_of))
    note = (
        f"several splits of a data set are read as one: {splits}; name the files of one in"
        " data.pattern, such as '**/train*'"
    )
    return (note,)


def open_records(corpus: Corpus, config: DataConfig, *, tokenizer_file: AnyPath) -> MemoryText:
    """Read and tokenize all records.

    Args:
        corpus: files of records.
        config: kind of records, fields and template.
        tokenizer_file: tokenizer.json, or a folder with it.

    Raises:
        ConfigError: they are too many, of no known kind, or the tokenizer cannot be used.
    """
    # Phase 1: bound the memory before a record is read. Compressed files count with their
    # uncompressed size.
    files = [corpus.folder / name for name in corpus.paths]
    size = sum(uncompressed_bytes(file, most=MOST_BYTES) for file in files)
    if size > MOST_BYTES:
        raise ConfigError(
            f"data.source: {corpus.folder} has {size} bytes of records or more, and a run"
            f" tokenizes {MOST_BYTES} at most when it starts; make token shards with python -m"
            f" drumline_trainer.data.tokenize --source {corpus.folder} --pattern '{config.pattern}'"
            f" --tokenizer {tokenizer_file} --output FOLDER, then set data.source to FOLDER"
        )
    # Phase 2: tokenize. Every rank does this alone and gets equal tokens, so no rank sends them.
    reader = RecordReader.of(corpus, config, tokenizer_file=tokenizer_file)
    survey = DocumentSurvey()
    documents: list[EncodedDocument] = []
    for record, document in reader.read():
        survey.add(record, place=document.place, note=document.note)
        # A document of a pair stays even without tokens. `pair_table` reshapes the documents to
        # [pairs, 2] and relies on the order.
        documents += [each for each in record if each.tokens or reader.renderer.kind.paired]
    if not documents:
        raise ConfigError(f"data.source: the records under {corpus.folder} make no token")
    # Phase 3: check and join. A check after the loop can report counts over all records.
    survey.check()
    text = _joined(documents, tokenizer=reader.tokenizer, paired=reader.renderer.kind.paired)
    return replace(
        text,
        notes=(*survey.notes(), *name_notes(corpus)),
        examples=tuple(survey.examples(reader.tokenizer, color=False)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordReader:
    """From the files of a corpus to the tokens of their documents: the one path of all commands."""

    corpus: Corpus
    tokenizer: LoadedTokenizer
    frame: TextFrame
    renderer: RecordRenderer

    @classmethod
    def of(
        cls, corpus: Corpus, config: DataConfig, *, tokenizer_file: AnyPath, end: str | None = None
    ) -> RecordReader:
        """Make a reader; template and special tokens lie beside the tokenizer.

        Args:
            corpus: the files.
            config: how they are read.
            tokenizer_file: a tokenizer.json.
            end: the token that ends texts. None: the tokenizer's.

        Raises:
            ConfigError: the first record is of no known kind, conversations have no template, or
                the tokenizer cannot be used.
        """
        tokenizer, folder = LoadedTokenizer.of(tokenizer_file), tokenizer_file.parent
        # Settings beside the tokenizer name the end token if the tokenizer's post-processor adds
        # none.
        number = None if end is None else tokenizer.number_of(end)
        if end is not None and number is None:
            raise ConfigError(f"end-of-text: {end!r} is no token of {tokenizer_file}")
        frame = tokenizer.frame(folder, end=number)
        # The first record decides for all. Kinds in one file never mix, and the renderer rejects a
        # record of another kind.
        kind = first_kind(corpus, field=config.field)
        templates = None
        # A template is read only for conversations. A base model without a template can thus train
        # on plain text.
        if kind.of_each is RecordKind.CONVERSATION:
            ends = tokenizer.ends(frame)
            templates = chat_templates_of(folder, choice=config.chat_template, ends=ends)
        return cls(
            corpus=corpus,
            tokenizer=tokenizer,
            frame=frame,
            renderer=RecordRenderer(kind=kind, field=config.field, templates=templates),
        )

    def read(
        self, *, start: DocumentPosition | None = None
    ) -> Iterator[tuple[EncodedRecord, TextDocument]]:
        """Yield every record from a position on.

        Raises:
            ConfigError: a record cannot be read.
        """
        begin = start or DocumentPosition()
        stream = read_documents(self.corpus, renderer=self.renderer, start=begin)
        # The tokenizers library is parallel within one call, so records are encoded in batches.
        for batch in _batched(stream):
            records = [document.texts for document in batch]
            # Batches do not change tokens, because each text is encoded alone.
            yield from zip(self.tokenizer.encode(records, frame=self.frame), batch, strict=True)


def _batched(stream: Iterator[TextDocument]) -> Iterator[list[TextDocument]]:
    """Yield documents in batches that keep all threads of the tokenizer busy."""
    # The limit counts characters, not documents: a batch of books would hold gigabytes.
    batch: list[TextDocument] = []
    size = 0
    for document in stream:
        batch.append(document)
        size += document.characters
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _joined(
    documents: list[EncodedDocument], *, tokenizer: LoadedTokenizer, paired: bool
) -> MemoryText:
    # Spans are relative to their document. `moved` shifts them by the start of the document in the
    # joined stream.
    ends = list(accumulate(len(document.tokens) for document in documents))
    # Without spans every token is learned, and no mask is stored.
    spans = [document.learned for document in documents if document.learned is not None]
    # int32 halves the memory of int64. Vocabularies stay far below 2^31.
    tokens = np.array([token for each in documents for token in each.tokens], dtype=np.int32)
    return MemoryText(
        all_tokens=tokens,
        ends=np.array(ends, dtype=np.int64),
        learned=LearnedSpans.of(moved(spans, [0, *ends[:-1]])) if spans else None,
        # Some tokenizers have more tokens than their model, such as Gemma 3's for images.
        vocabulary=int(tokens.max(initial=-1)) + 1,
        tokenizer_sha256=tokenizer.sha256,
        paired=paired,
    )
