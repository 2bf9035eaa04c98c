"""Files of records: lines of JSON, plain or gzip, Parquet, Hugging Face's Arrow files, and tars.

A file `.json` is one of records too if it is a list of objects, or lines of them.

In a tar as WebDataset makes them a sample is a record: 0007.json is its fields, 0007.txt its field
`text`; one of the two, or both. Other members are left alone.
"""

from __future__ import annotations

import codecs
import gzip
import importlib
import json
import mmap
import re
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from drumline_contract.config import ConfigError
from drumline_contract.json_fields import ContractError, keys_once
from drumline_contract.regular_files import LFS_POINTER, NotRegularError, open_regular
from drumline_trainer.data.contents import HEAD_BYTES, other_format
from drumline_trainer.data.records.arrow_batches import (
    batch_bytes,
    bounded_batches,
    longest_value,
    parquet_plan,
    read_columns,
)
from drumline_trainer.data.records.json_columns import Decode, fields_decoder
from drumline_trainer.data.records.kinds import Record
from drumline_trainer.data.records.messages import without_nulls
from drumline_trainer.data.tar_samples import TAR_SUFFIX, ending, tar_samples

LINES_SUFFIXES: Final = (".jsonl", ".ndjson", ".jsonlines")
_PACKED_LINES_SUFFIXES: Final = tuple(f"{suffix}.gz" for suffix in LINES_SUFFIXES)
RECORD_SUFFIXES: Final = (
    *LINES_SUFFIXES,
    *_PACKED_LINES_SUFFIXES,
    ".parquet",
    ".arrow",
    TAR_SUFFIX,
)
"""Suffixes of files of records."""
JSON_SUFFIX: Final = ".json"
_FIELDS, _TEXT = JSON_SUFFIX, ".txt"
_LIST_OF_OBJECTS: Final = re.compile(rb"\s*\[\s*\{")
_OBJECT_IN_A_LINE: Final = re.compile(rb"\s*\{.*\}\s*")
_OPENS_JSON: Final = re.compile(rb"\s*[\[{]")
_FIELDS_OF_RECORDS: Final = tuple(
    tuple(re.compile(rb'"%s"\s*:' % name) for name in names)
    for names in (
        *((b"messages",), (b"conversations",), (b"role", b"content")),
        *((b"prompt", b"completion"), (b"instruction", b"output"), (b"chosen", b"rejected")),
    )
)
TABLE_SUFFIXES: Final = (".csv", ".tsv")
_SEPARATORS: Final = re.compile(r"[,;\t]")
_COLUMNS_OF_RECORDS: Final = tuple(
    frozenset(names.split())
    for names in (
        *("text", "messages", "conversations", "prompt completion"),
        *("instruction output", "chosen rejected"),
    )
)
_CONTINUATION: Final = b"\xff" * 4
_END_OF_STREAM: Final = _CONTINUATION + bytes(4)
_HEAD_BYTES: Final = 1 << 20
_MOST_LIST_BYTES: Final = 1 << 30
"""Maximum size of a list, which is decoded as a whole."""
_MAX_RECORD_BYTES: Final = 64 << 20
"""Maximum size of a line or a member of a tar. A few bytes of gzip can hold gigabytes of one line.
"""
_READ_BYTES: Final = 1 << 20
_MARK: Final = "\ufeff"
"""Byte order mark, which some editors write before the first record."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record of a file."""

    record: Record
    place: str
    """For messages: where in which file."""
    after: int
    """Bytes of the file before the next, unpacked ones; of Parquet and Arrow, rows."""


def read_records(path: Path, *, offset: int) -> Iterator[StoredRecord]:
    """Yield the records of a file from a position of `StoredRecord.after`; 0 for all.

    Raises:
        ConfigError: it is damaged, or holds other data.
        OSError: its storage fails.
    """
    _check_content(path)
    name = path.name.lower()
    if name.endswith((*LINES_SUFFIXES, *_PACKED_LINES_SUFFIXES)):
        return _lines(path, offset=offset)
    if name.endswith(TAR_SUFFIX):
        return _samples(path, offset=offset)
    if name.endswith(JSON_SUFFIX):
        listed = _LIST_OF_OBJECTS.match(_head(path))
        return (_listed if listed else _lines)(path, offset=offset)
    return _rows(path, offset=offset)


def holds_records(path: Path) -> bool:
    """Return whether a file `.json` is a list of objects or lines of them, by its first bytes.

    Raises:
        ConfigError: it is not a regular file.
        OSError: its storage fails.
    """
    if _LIST_OF_OBJECTS.match(_head(path)):
        return True
    with _named_errors(path), open_regular(path) as file:
        # The first line may be longer than the head, and be the last line too.
        line = file.readline(_MAX_RECORD_BYTES + 1).removeprefix(codecs.BOM_UTF8)
        while line and not line.strip():
            line = file.readline(_MAX_RECORD_BYTES + 1)
    return bool(_OBJECT_IN_A_LINE.fullmatch(line))


def check_is_text(path: Path) -> None:
    """Refuse a file `.json` whose objects are records, in a form that holds none.

    Such as one record over several lines, `{"data": [...]}`, or columns. They would be learned as
    JSON, brackets included.

    Raises:
        ConfigError: its first bytes have the fields of records.
        OSError: its storage fails.
    """
    head = _head(path)
    if _OPENS_JSON.match(head) and any(
        all(field.search(head) for field in fields) for fields in _FIELDS_OF_RECORDS
    ):
        raise ConfigError(
            f"data.source: {path} has records, but it is not a list or lines of objects; write one"
            " object a line into a .jsonl, or name the file .txt to learn its JSON as text"
        )


def check_is_no_table(path: Path) -> None:
    """Refuse a file of comma or tab separated values whose columns are fields of records.

    Its rows would be learned as the lines of one text.

    Raises:
        ConfigError: its first line has the fields of records.
        OSError: its storage fails.
    """
    first = _head(path).partition(b"\n")[0].decode(errors="replace")
    columns = {name.strip().strip('"').lower() for name in _SEPARATORS.split(first)}
    if any(fields <= columns for fields in _COLUMNS_OF_RECORDS):
        raise ConfigError(
            f"data.source: {path} is a table of records, and tables are not read; write it as"
            " .jsonl or .parquet, or name it .txt to learn its lines as text"
        )


def is_packed(path: Path) -> bool:
    """Return whether a file has lines of JSON in gzip, by its name."""
    return path.name.lower().endswith(_PACKED_LINES_SUFFIXES)


def _check_content(path: Path) -> None:
    """Raise ConfigError where a file is of another format than its name says."""
    with _named_errors(path), open_regular(path, buffering=0) as file:
        head = file.read(HEAD_BYTES)
    kind = other_format("", head)
    if kind is None:
        return
    has_text = path.name.lower().endswith((*LINES_SUFFIXES, JSON_SUFFIX))
    if has_text or head.startswith(LFS_POINTER):
        raise ConfigError(f"data.source: {path} is {kind}; its name says otherwise")


def _head(path: Path) -> bytes:
    with _named_errors(path), open_regular(path) as file:
        return file.read(_HEAD_BYTES).removeprefix(codecs.BOM_UTF8)


def uncompressed_bytes(path: Path, *, most: int) -> int:
    """Return the approximate size of the records in memory; at most slightly above `most`.

    Raises:
        ConfigError: it is damaged.
        OSError: its storage fails.
    """
    _check_content(path)
    if is_packed(path):
        with _named_errors(path), open_regular(path) as packed, gzip.open(packed) as file:
            size = 0
            while size <= most and (block := file.read(_READ_BYTES)):
                size += len(block)
            return size
    if not path.name.lower().endswith((".parquet", ".arrow")):
        return path.stat().st_size
    # what the file says of itself is not believed: a dictionary stands for any number of values
    size = 0
    with _named_errors(path):
        for batch in _batches(path):
            size += batch_bytes(batch)
            if size > most:
                break
    return size


def decoded(content: bytes, path: Path, *, at: int) -> str:
    """Decode UTF-8.

    Args:
        content: bytes of a line or file.
        path: the file, for the message.
        at: byte offset of `content` in the file, for the message.

    Raises:
        ConfigError: the text is not UTF-8.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"source: {path} is not UTF-8 at byte {at + error.start}; convert it, or leave it out"
            " by --pattern"
        ) from error


def _lines(path: Path, *, offset: int) -> Iterator[StoredRecord]:
    packed = is_packed(path)
    with _named_errors(path), open_regular(path) as stored:
        file = gzip.open(stored) if packed else stored  # noqa: SIM115 - nothing but `stored` is open
        file.seek(offset)
        while line := file.readline(_MAX_RECORD_BYTES + 1):
            at, offset = offset, offset + len(line)
            place = f"the line of {path} at byte {at}"
            if len(line) > _MAX_RECORD_BYTES:
                raise ConfigError(f"source: {place} is longer than {_MAX_RECORD_BYTES} bytes")
            if line.strip():
                yield StoredRecord(_object(decoded(line, path, at=at), place), place, offset)


def _listed(path: Path, *, offset: int) -> Iterator[StoredRecord]:
    """Yield the objects of a list; offsets are numbers of objects."""
    with _named_errors(path), open_regular(path) as file:
        content = file.read(_MOST_LIST_BYTES + 1)
    if len(content) > _MOST_LIST_BYTES:
        raise ConfigError(
            f"source: {path} is a list of more than {_MOST_LIST_BYTES} bytes; write its objects as"
            " lines, into a .jsonl"
        )
    try:
        text = decoded(content, path, at=0).removeprefix(_MARK)
        records: list[Any] = json.loads(text, object_pairs_hook=keys_once)
    except ContractError as error:
        raise ConfigError(f"source: {path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"source: {path} is not JSON: {error}") from error
    for number, record in enumerate(records[offset:], start=offset + 1):
        place = f"entry {number} of {path}"
        if not isinstance(record, dict):
            raise ConfigError(f"source: {place} is not a JSON object")
        yield StoredRecord(cast("Record", record), place, number)


def _object(text: str, place: str) -> Record:
    try:
        record: Any = json.loads(text.removeprefix(_MARK), object_pairs_hook=keys_once)
    except ContractError as error:
        raise ConfigError(f"source: {place}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"source: {place} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ConfigError(f"source: {place} is not a JSON object")
    return cast("Record", record)


def _samples(path: Path, *, offset: int) -> Iterator[StoredRecord]:
    for sample in tar_samples(path, offset=offset):
        place = f"sample {sample.key} of {path}"
        texts: dict[str, str] = {}
        for member in sample.members:
            kind = ending(member)
            if kind not in (_FIELDS, _TEXT):
                continue
            if member.size > _MAX_RECORD_BYTES:
                raise ConfigError(
                    f"source: {place}: {member.name} has {member.size} bytes; a record has"
                    f" {_MAX_RECORD_BYTES} at most"
                )
            if kind in texts:
                raise ConfigError(f"source: {place} has {kind} twice")
            content = sample.content(member, most=_MAX_RECORD_BYTES)
            texts[kind] = decoded(content, path, at=member.offset_data)
        yield StoredRecord(_of_members(texts, place), place, sample.after)


def _of_members(texts: Mapping[str, str], place: str) -> Record:
    if not texts:
        raise ConfigError(f"source: {place} has neither {_FIELDS} nor {_TEXT}")
    record: Record = _object(texts[_FIELDS], place) if _FIELDS in texts else {}
    if _TEXT not in texts:
        return record
    if "text" in record:
        raise ConfigError(f"source: {place} has a text twice: in {_TEXT}, and in {_FIELDS}")
    return {**record, "text": texts[_TEXT]}


def _rows(path: Path, *, offset: int) -> Iterator[StoredRecord]:
    with _named_errors(path):
        row = 0
        for batch in _batches(path):
            skipped = min(batch.num_rows, max(0, offset - row))
            row += skipped
            try:
                records = batch.slice(skipped).to_pylist(maps_as_pydicts="strict")
            except (KeyError, ValueError, OverflowError) as error:
                # The time zone database raises a subclass.
                if type(error) is not KeyError:
                    raise ConfigError(f"source: {path}: after row {row}: {error}") from error
                raise ConfigError(
                    f"source: {path}: a map after row {row} has the same key twice; write each once"
                ) from error
            decode = fields_decoder(batch.schema)
            for record in records:
                row += 1
                place = f"row {row} of {path}"
                # Nulls of columns go first: those inside of JSON were written as such.
                known = without_nulls(record)
                yield StoredRecord(
                    known if decode is None else _decoded(known, decode, place), place, row
                )


def _decoded(record: Record, decode: Decode, place: str) -> Record:
    try:
        return decode(record)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"source: {place} has a column of JSON that is none: {error}") from error


def _batches(path: Path) -> Iterator[Any]:
    return _parquet(path) if path.name.lower().endswith(".parquet") else _arrow(path)


def _parquet(path: Path) -> Iterator[Any]:
    """Yield few rows at a time: a batch is not much larger in memory than what is stored."""
    parquet = _pyarrow("pyarrow.parquet")
    with open_regular(path) as stored:
        metadata = parquet.read_metadata(stored)
        plan = parquet_plan(metadata, path)
        as_texts = parquet.ParquetFile(stored)
        as_stored = parquet.ParquetFile(stored, read_dictionary=plan.texts)
        for group in range(metadata.num_row_groups):
            # a group has one dictionary for each column, and the first row brings it
            first = next(as_stored.iter_batches(batch_size=1, row_groups=[group]), None)
            longest = 0 if first is None else longest_value(first)
            rows, expands = plan.of_group(group, longest=longest, most=_MAX_RECORD_BYTES)
            file = as_texts if expands else as_stored
            for batch in file.iter_batches(batch_size=rows, row_groups=[group]):
                columns = read_columns(batch, path)
                yield from bounded_batches(columns, path, most=_MAX_RECORD_BYTES)


def _arrow(path: Path) -> Iterator[Any]:
    """Yield the batches of an Arrow stream, as saved by `datasets`, or of an Arrow file."""
    arrow, ipc = _pyarrow("pyarrow"), _pyarrow("pyarrow.ipc")
    with open_regular(path) as stored:
        mapped = mmap.mmap(stored.fileno(), 0, access=mmap.ACCESS_READ)
    source = arrow.BufferReader(arrow.py_buffer(mapped))
    if source.read(6) == b"ARROW1":
        file = ipc.open_file(source)
        batches = (file.get_batch(number) for number in range(file.num_record_batches))
    else:
        _check_end(mapped, path)
        source.seek(0)
        batches = ipc.open_stream(source)
    for batch in batches:
        yield from bounded_batches(read_columns(batch, path), path, most=_MAX_RECORD_BYTES)


def _check_end(stream: mmap.mmap, path: Path) -> None:
    """Refuse a stream without its end: a writer that is killed leaves one of whole batches.

    Raises:
        ConfigError: the end is missing.
    """
    # Streams of the older format, before Arrow 0.15, begin without this word.
    if (
        stream[: len(_CONTINUATION)] == _CONTINUATION
        and stream[-len(_END_OF_STREAM) :] != _END_OF_STREAM
    ):
        raise ConfigError(
            f"data.source: {path} has no end of its stream: its writer did not finish; write it"
            " again"
        )


@contextmanager
def _named_errors(path: Path) -> Generator[None]:
    """Convert errors of the library to errors about the file.

    An OSError with a number is kept: it concerns the storage, which may come back.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, NotRegularError):
            raise ConfigError(f"data.source: {path}: {error.strerror}") from error
        if isinstance(error, OSError) and error.errno is not None:
            raise
        damaged = isinstance(error, OSError | EOFError | zlib.error)  # gzip's own is an OSError
        if damaged or type(error).__module__.startswith("pyarrow"):
            raise ConfigError(f"data.source: {path}: {error}") from error
        raise


def _pyarrow(name: str) -> Any:
    try:
        return importlib.import_module(name)  # optional, without types
    except ImportError as error:
        raise ConfigError(
            "data.source: Parquet and Arrow files are read with the package pyarrow, which no extra"
            " of drumline has; install it too"
        ) from error
