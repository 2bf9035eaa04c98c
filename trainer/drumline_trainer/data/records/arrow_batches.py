"""Sizes of Arrow's rows as Python objects, before they are made.

A few kilobytes of Parquet or Arrow can be gigabytes of text: a value of a dictionary stands for
any number of rows. Arrow's own lengths say so without a copy.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from drumline_contract.config import ConfigError

_MOST_ROWS: Final = 1024
_OBJECT_BYTES: Final = 8
"""Least bytes of a value: a reference to an object."""

_MAX_BATCH_ROWS: Final = 32
_MAX_EXPANDED_BYTES: Final = 1 << 30
_DELTA_ENCODINGS: Final = {"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetPlan:
    """Number of rows of a Parquet file to decode at a time, and their form."""

    metadata: Any
    texts: list[str]
    """Columns whose dictionaries can be kept."""
    has_deltas: bool
    """A value of DELTA_BYTE_ARRAY is its difference from the one before: read row by row."""

    def of_group(self, group: int, *, longest: int, most: int) -> tuple[int, bool]:
        """Return the rows of a batch, and whether dictionaries may be written out.

        Args:
            group: number of the row group.
            longest: bytes of the longest value of its dictionaries.
            most: bytes of a batch.
        """
        part = self.metadata.row_group(group)
        average = part.total_byte_size // max(1, part.num_rows)
        rows = max(1, min(_MAX_BATCH_ROWS, most // max(1, longest, average)))
        columns = map(part.column, range(part.num_columns))
        values = max((each.num_values for each in columns), default=0)
        # one row may have all values of a list's column
        expands = not self._has_lists() or values * longest <= _MAX_EXPANDED_BYTES
        return 1 if self.has_deltas else rows, expands

    def _has_lists(self) -> bool:
        columns = range(self.metadata.num_columns)
        return any(self.metadata.schema.column(each).max_repetition_level for each in columns)


def parquet_plan(metadata: Any, path: Path) -> ParquetPlan:
    """Plan how to read a file of this `pyarrow.parquet.FileMetaData`.

    Raises:
        ConfigError: lists are delta-encoded: a row of them has no bound.
    """
    texts: list[str] = []
    has_deltas = False
    for number in range(metadata.num_columns):
        column = metadata.schema.column(number)
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        encodings = {each for group in groups for each in group.column(number).encodings}
        if column.physical_type != "BYTE_ARRAY":
            continue
        if not encodings & _DELTA_ENCODINGS:
            texts.append(column.path)
        elif column.max_repetition_level:
            raise ConfigError(
                f"source: lists of {column.path} in {path} are delta-encoded; write the file with"
                " dictionaries or plain values"
            )
        else:
            has_deltas = True
    return ParquetPlan(metadata=metadata, texts=texts, has_deltas=has_deltas)


def longest_value(batch: Any) -> int:
    """Return the bytes of the longest value in the dictionaries of a batch."""
    return max((_longest(column) for column in batch.columns), default=0)


def _longest(array: Any) -> int:
    types = importlib.import_module("pyarrow.types")
    kind = array.type
    if types.is_dictionary(kind) and _has_lengths(kind.value_type):
        return _compute().max(_compute().binary_length(array.dictionary)).as_py() or 0
    if types.is_struct(kind):
        return max((_longest(each) for each in array.flatten()), default=0)
    if types.is_map(kind):
        return max(_longest(array.keys), _longest(array.items))
    if types.is_list(kind) or types.is_large_list(kind):
        return _longest(array.values)
    return 0


def read_columns(batch: Any, path: Path) -> Any:
    """Return a batch without the columns that no record reads: times, decimals and unions.

    Python cannot hold all of their values, such as times with nanoseconds.

    Args:
        batch: a `pyarrow.RecordBatch`.
        path: path of the file, for messages.

    Raises:
        ConfigError: two columns have one name.
    """
    types = importlib.import_module("pyarrow.types")
    names = batch.schema.names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"source: {path} has two columns {twice!r}; leave one of them out")
    unread = (types.is_temporal, types.is_decimal, types.is_union)
    kinds = enumerate(batch.schema.types)
    return batch.select([at for at, kind in kinds if not any(is_of(kind) for is_of in unread)])


def bounded_batches(batch: Any, path: Path, *, most: int) -> Iterator[Any]:
    """Split a record batch into parts of at most `most` bytes once they are Python objects.

    Args:
        batch: a `pyarrow.RecordBatch`.
        path: path of the file, for messages.
        most: bytes of a part, and of a row.

    Raises:
        ConfigError: a row is larger.
        ArrowInvalid: lengths or offsets of the batch contradict each other.
    """
    batch.validate(full=True)  # offsets are used as they are from here on
    for start in range(0, batch.num_rows, _MOST_ROWS):
        part = batch.slice(start, _MOST_ROWS)
        if batch_bytes(part) <= most:
            yield part
            continue
        for row in range(part.num_rows):
            size = batch_bytes(part.slice(row, 1))
            if size > most:
                raise ConfigError(
                    f"source: a row of {path} has {size} bytes; a record has {most} at most"
                )
            yield part.slice(row, 1)


def batch_bytes(batch: Any) -> int:
    """Return an upper bound of the bytes of a batch's values as Python objects."""
    return sum(_bytes(column) for column in batch.columns)


def _bytes(array: Any) -> int:
    """Return an upper bound of the bytes of an array's values, each as its own object."""
    types = importlib.import_module("pyarrow.types")  # optional, without types
    kind = array.type
    own = len(array) * _OBJECT_BYTES
    if types.is_dictionary(kind):
        return own + _of_dictionary(array)
    if hasattr(array, "storage"):  # an extension type
        return _bytes(array.storage)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return own + _viewed(array)
    if _has_lengths(kind):
        return own + _sum(_compute().binary_length(array))
    if types.is_struct(kind):
        return own + sum(_bytes(each) for each in array.flatten())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return own + _bytes(array.flatten())
    if types.is_map(kind):
        start, stop = array.offsets[0].as_py(), array.offsets[-1].as_py()
        entries = (each.slice(start, stop - start) for each in (array.keys, array.items))
        return own + sum(map(_bytes, entries))
    if types.is_primitive(kind) or types.is_null(kind) or types.is_fixed_size_binary(kind):
        width = 0 if types.is_null(kind) else kind.bit_width // 8
        return own + len(array) * width
    raise ConfigError(f"source: values of Arrow's type {kind} are not read; write texts or numbers")


def _of_dictionary(array: Any) -> int:
    values = array.dictionary
    if _has_lengths(values.type):
        lengths = _compute().binary_length(values)
        return _sum(_compute().take(lengths, array.indices))
    return len(array) * _bytes(values)


def _viewed(array: Any) -> int:
    """Sum the lengths of views: each is four int32 in a buffer of its own, the length first."""
    views = np.frombuffer(array.buffers()[1], dtype=np.int32).reshape(-1, 4)
    return int(views[array.offset : array.offset + len(array), 0].sum(dtype=np.int64))


def _has_lengths(kind: Any) -> bool:
    types = importlib.import_module("pyarrow.types")
    return any(
        (
            types.is_string(kind) or types.is_binary(kind),
            types.is_large_string(kind) or types.is_large_binary(kind),
        )
    )


def _sum(lengths: Any) -> int:
    compute = _compute()
    return compute.sum(compute.cast(lengths, "int64")).as_py() or 0


def _compute() -> Any:
    return importlib.import_module("pyarrow.compute")
