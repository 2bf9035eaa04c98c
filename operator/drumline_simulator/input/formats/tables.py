"""Read CSV tables with a header. Some columns are required, the others are ignored."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator

from drumline_simulator.input.errors import InvalidFileError
from drumline_simulator.input.rows import Row


def rows(lines: Iterable[str], *, file: str, needed: tuple[str, ...]) -> Iterator[Row]:
    """Yield each row of a table by the names in its header.

    Args:
        lines: lines of the file.
        file: name of the file, for errors.
        needed: names of required columns.

    Raises:
        InvalidFileError: a required column is missing, or a row and the header differ in length.
    """
    reader = csv.reader(lines)
    first = next(reader, list[str]())
    header = [name.strip().removeprefix("\ufeff") for name in first]
    for name in needed:
        if name not in header:
            raise InvalidFileError(file=file, line=1, field=name, reason="this column is missing")
    for cells in reader:
        if not cells:
            continue
        if len(cells) != len(header):
            why = f"has {len(cells)} cells, the header has {len(header)}"
            raise InvalidFileError(file=file, line=reader.line_num, field="", reason=why)
        yield Row(file=file, line=reader.line_num, cells=dict(zip(header, cells, strict=True)))
