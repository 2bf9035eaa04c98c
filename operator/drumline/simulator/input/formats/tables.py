"""CSV with a header, of which some columns have to be there and the others do not matter."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator

from drumline.simulator.input.errors import BadFile
from drumline.simulator.input.rows import Row


def rows(lines: Iterable[str], *, file: str, needed: tuple[str, ...]) -> Iterator[Row]:
    """Each row of a table by the names in its header.

    Raises:
        BadFile: where a needed column is missing or a row is longer or shorter than the header.
    """
    reader = csv.reader(lines)
    first = next(reader, list[str]())
    header = [name.strip().removeprefix("\ufeff") for name in first]
    for name in needed:
        if name not in header:
            raise BadFile(file=file, line=1, field=name, why="this column is missing")
    for cells in reader:
        if not cells:
            continue
        if len(cells) != len(header):
            why = f"has {len(cells)} cells, the header has {len(header)}"
            raise BadFile(file=file, line=reader.line_num, field="", why=why)
        yield Row(file=file, line=reader.line_num, cells=dict(zip(header, cells, strict=True)))
