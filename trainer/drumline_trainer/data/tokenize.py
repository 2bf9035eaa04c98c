"""`python -m drumline_trainer.data.tokenize`: a folder of text becomes a folder of token shards.

The shards are a function of the text, the tokenizer and the options only. An interrupted command
resumes after the last complete shard, and its files equal those of an uninterrupted run. The index
is written last. Memory: one document, one batch and 4 bytes for each document of a shard.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from drumline_contract.config import ConfigError, DataConfig
from drumline_trainer.data.corpus import Corpus, local_source, open_corpus
from drumline_trainer.data.document_reader import DocumentPosition
from drumline_trainer.data.record_text import RecordReader, name_notes, records_of
from drumline_trainer.data.records.kinds import RecordKind
from drumline_trainer.data.records.survey import DocumentSurvey
from drumline_trainer.data.records.tokenizer import EncodedRecord
from drumline_trainer.data.shards.index import (
    INDEX_FILE,
    ShardFile,
    ShardIndex,
    ShardRecord,
    parse_index,
)
from drumline_trainer.data.shards.writer import BLOCK_BYTES, PARTIAL, ShardWriter, write_durably

PROGRESS_FILE = "unfinished.json"
_LOCK_FILE = ".lock"
_SHARD_TOKENS = 100_000_000
_LARGEST_SHARD_TOKENS = 2**31
"""Ends of documents are uint32, and the last document may exceed the limit."""
_PRINT_SECONDS = 10.0
_RULES = 5
"""Raised when the same records become other tokens: shards of both rules must not be joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeOptions:
    """Options of `data tokenize`."""

    source: Path
    pattern: str
    tokenizer: Path
    output: Path
    field: str = "text"
    """Field with the text in lines of .jsonl files that are not conversations."""
    end_of_text: str | None = None
    """Token to append to each document that is a text; None: the tokenizer's own."""
    chat_template: Path | None = None
    """Template of conversations. None: the one beside the tokenizer."""
    shard_tokens: int = _SHARD_TOKENS
    """A shard ends with the document that reaches this number of tokens."""

    def __post_init__(self) -> None:
        """Raise ConfigError for an invalid number."""
        if not 1 <= self.shard_tokens <= _LARGEST_SHARD_TOKENS:
            raise ConfigError(
                f"shard-tokens: must be from 1 to {_LARGEST_SHARD_TOKENS}, not {self.shard_tokens}"
            )


@dataclass(frozen=True, slots=True)
class _FinishedShards:
    """Complete shards, and the position at which the next one begins."""

    shards: tuple[ShardRecord, ...]
    place: DocumentPosition
    """Named as in the progress file."""


def tokenize(options: TokenizeOptions, *, print_line: Callable[[str], None]) -> ShardIndex:
    """Tokenize, or resume an interrupted command.

    Raises:
        ConfigError: text, tokenizer or output cannot be used, or the output has other options.
    """
    # Phase 1: open the input. The folder is resolved, so that the listing does not depend on the
    # working directory.
    source = DataConfig(
        source=str(options.source.resolve()),
        pattern=options.pattern,
        field=options.field,
        chat_template=None if options.chat_template is None else str(options.chat_template),
    )
    corpus = open_corpus(source)
    corpus = records_of(corpus, with_text=True) or corpus
    reader = RecordReader.of(
        corpus, source, tokenizer_file=options.tokenizer, end=options.end_of_text
    )
    # The header is complete before the first token is written: `made_from` identifies the command.
    encoder = _Encoder(reader=reader, header=_header(options, reader), survey=DocumentSurvey())
    header = encoder.header
    options.output.mkdir(parents=True, exist_ok=True)
    # Phase 2: write. The lock covers the check of the index and the removal of partial files by
    # `_resumed`.
    with _locked(options.output):
        index_file = options.output / INDEX_FILE
        if index_file.exists():
            # A present index means that every shard is durable, because the index is written last.
            index = parse_index(index_file.read_bytes(), where=str(options.output))
            _check_same_options(index.made_from, header.made_from, options.output)
            print_line(f"{options.output} is complete already: {index.tokens} tokens")
            return index
        index = _write_shards(options, encoder, print_line=print_line)
        # The survey checks answers before the index exists. A failed check leaves the shards, but
        # no data set that a run would open.
        encoder.survey.check()
        for note in (*encoder.survey.notes(), *name_notes(corpus)):
            print_line(note)
        # The index becomes durable first. A crash between the two lines leaves a complete data set
        # and a stale progress file.
        write_durably(index_file, index.encode())
        (options.output / PROGRESS_FILE).unlink(missing_ok=True)
    print_line(
        f"{index.documents} documents, {index.tokens} tokens, {len(index.shards)} shards: done"
    )
    return index


@dataclass(frozen=True, slots=True, kw_only=True)
class _IndexHeader:
    """The index without its shards."""

    token_type: str
    vocabulary: int
    tokenizer_sha256: str
    end_of_text: int | None
    made_from: str
    paired: bool

    def filled(self, shards: tuple[ShardRecord, ...]) -> ShardIndex:
        return ShardIndex(**asdict(self), block_bytes=BLOCK_BYTES, shards=shards)


def _header(options: TokenizeOptions, reader: RecordReader) -> _IndexHeader:
    tokenizer, frame, renderer = reader.tokenizer, reader.frame, reader.renderer
    # A frame may end with several tokens. Readers of the index need the last one, which ends a
    # document.
    end = frame.end[-1] if frame.end else None
    # Everything that changes a token or a shard boundary is hashed. A resumed command must not join
    # shards of two option sets.
    parts: tuple[object, ...] = (
        _RULES,
        reader.corpus.fingerprint(),
        tokenizer.sha256,
        options.field,
        frame.begin,
        frame.end,
        options.shard_tokens,
        BLOCK_BYTES,
    )
    # Shards of plain text ignore templates and stop tokens. Their digest must stay equal when a
    # template beside the tokenizer changes.
    if renderer.kind is not RecordKind.TEXT:
        parts += (renderer.kind, sorted(frame.stops))
        parts += () if renderer.templates is None else (renderer.templates.source,)
    return _IndexHeader(
        # uint16 halves the bytes to read. Token 65,535 still fits, so the limit is the vocabulary
        # size, not the largest token.
        token_type="uint16" if tokenizer.vocabulary <= 2**16 else "uint32",
        vocabulary=tokenizer.vocabulary,
        tokenizer_sha256=tokenizer.sha256,
        end_of_text=end,
        made_from=hashlib.sha256(json.dumps(parts).encode()).hexdigest(),
        paired=renderer.kind.paired,
    )


def _write_shards(
    options: TokenizeOptions, encoder: _Encoder, *, print_line: Callable[[str], None]
) -> ShardIndex:
    # Phase 1: start after the last complete shard of an interrupted command.
    header, corpus = encoder.header, encoder.reader.corpus
    done = _resumed(options.output, header.made_from, print_line=print_line)
    progress = _ProgressPrinter(corpus, start=done.place, print_line=print_line)
    stream = encoder.records(start=done.place)
    # One record is read ahead: a shard is opened only when a record for it exists, so no shard is
    # empty.
    record = next(stream, None)
    while record is not None:
        with ShardWriter(options.output, len(done.shards), token_type=header.token_type) as shard:
            # The limit is tested between records. Both documents of a pair therefore lie in one
            # shard.
            while record is not None and shard.tokens < options.shard_tokens:
                documents, position = record
                for document in documents:
                    shard.add(document.tokens, learned=document.learned)
                progress.add(sum(len(document.tokens) for document in documents), position)
                done = replace(done, place=position)
                record = next(stream, None)
            # `finish` renames the shard before the progress file mentions it. A crash in between
            # rewrites this shard with equal bytes.
            done = replace(done, shards=(*done.shards, shard.finish()))
        _save(options.output, header.made_from, done)
    # All records were skipped, or the corpus has only records without a token.
    if not done.shards:
        raise ConfigError(f"source: the text under {corpus.folder} makes no token")
    return header.filled(done.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoder:
    """From files to the tokens of their documents."""

    reader: RecordReader
    header: _IndexHeader
    survey: DocumentSurvey

    def records(
        self, *, start: DocumentPosition
    ) -> Iterator[tuple[EncodedRecord, DocumentPosition]]:
        """Yield the document of each record, or both of a pair, and the position after it.

        Records with a document without tokens are skipped.
        """
        for documents, text in self.reader.read(start=start):
            # The survey also counts skipped records, because its report explains why they are
            # missing.
            self.survey.add(documents, place=text.place, note=text.note)
            # `all`: a pair without one of its answers is useless, so both documents are skipped
            # together.
            if all(document.tokens for document in documents):
                yield documents, text.after


def _resumed(output: Path, made_from: str, *, print_line: Callable[[str], None]) -> _FinishedShards:
    """Return the shards of an interrupted run with the same options, and remove partial files.

    Raises:
        ConfigError: the output belongs to other options.
    """
    # A partial file belongs to a process that died. The lock excludes a live writer.
    for partial in output.glob(f"*{PARTIAL}"):
        partial.unlink()
    try:
        raw = json.loads((output / PROGRESS_FILE).read_bytes())
    except FileNotFoundError:
        return _FinishedShards((), DocumentPosition())
    _check_same_options(raw["made_from"], made_from, output)
    # JSON has no dataclasses. A shard without masks has null in place of the file record, and null
    # must stay None.
    shards = tuple(
        ShardRecord(**{name: record and ShardFile(**record) for name, record in shard.items()})
        for shard in raw["shards"]
    )
    print_line(f"going on after {len(shards)} complete shards")
    return _FinishedShards(shards, DocumentPosition(**raw["place"]))


def _save(output: Path, made_from: str, done: _FinishedShards) -> None:
    content = json.dumps({"made_from": made_from, **asdict(done)})
    write_durably(output / PROGRESS_FILE, content.encode())


def _check_same_options(existing: str, wanted: str, output: Path) -> None:
    if existing != wanted:
        raise ConfigError(
            f"output: {output} holds shards of other text, another tokenizer or other options;"
            " name another folder, or delete it"
        )


@contextmanager
def _locked(output: Path) -> Generator[None]:
    """Exclude other processes that write to this folder. Raises ConfigError."""
    # The kernel releases the lock when the process dies. A lock file with a process id would go
    # stale.
    with (output / _LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"output: another process writes to {output}") from error
        yield


class _ProgressPrinter:
    """Prints a line every ten seconds: share of the text, tokens per second, seconds left."""

    def __init__(
        self, corpus: Corpus, *, start: DocumentPosition, print_line: Callable[[str], None]
    ) -> None:
        self._corpus = corpus
        self._print_line = print_line
        self._tokens = 0
        self._start = self._bytes_before(start)
        self._begun = self._printed = time.monotonic()

    def add(self, tokens: int, position: DocumentPosition) -> None:
        """Count a document, and print the progress if it is due."""
        self._tokens += tokens
        now = time.monotonic()
        if now - self._printed < _PRINT_SECONDS:
            return
        self._printed = now
        done = self._bytes_before(position)
        seconds = now - self._begun
        # The rate counts only bytes of this process. A resumed command would otherwise report a too
        # short remaining time.
        left = (self._corpus.size - done) * seconds / (done - self._start)
        self._print_line(
            f"{done / self._corpus.size:.1%} of {self._corpus.size} bytes,"
            f" {self._tokens / seconds:,.0f} tokens/s, {left:.0f} s left"
        )

    def _bytes_before(self, position: DocumentPosition) -> int:
        ends = self._corpus.ends
        # `ends` are cumulative, so the bytes before a file are the end of the previous file.
        before = ends[position.file - 1] if position.file else 0
        # a packed file has more bytes than it takes
        return min(before + position.offset, ends[min(position.file, len(ends) - 1)])


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and tokenize. Returns 0, or 2 for a ConfigError."""
    parser = argparse.ArgumentParser(
        prog="python -m drumline_trainer.data.tokenize",
        description="Turn a folder of text into token shards for data.source.",
    )
    parser.add_argument("--source", required=True, help="folder of text, or hf://datasets/...")
    parser.add_argument("--pattern", default="**/*.txt", help="files that are read (**/*.txt)")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--output", type=Path, required=True, help="folder of the shards")
    parser.add_argument("--field", default="text", help="of the lines of .jsonl files (text)")
    parser.add_argument(
        "--end-of-text", help="token to append to each document that is a text (the tokenizer's)"
    )
    parser.add_argument("--chat-template", type=Path, help="file (the one beside the tokenizer)")
    parser.add_argument("--shard-tokens", type=int, default=_SHARD_TOKENS, help="tokens per shard")
    options = parser.parse_args(arguments)
    try:
        options.source = Path(local_source(options.source))
        tokenize(TokenizeOptions(**vars(options)), print_line=_print_line)
    except ConfigError as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2
    return 0


def _print_line(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
