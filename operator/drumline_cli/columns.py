"""Columns for a terminal, and bytes in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_GIB: Final = 2**30


def gib(size: float) -> str:
    """Format bytes as GiB, or as MiB below 0.1 GiB."""
    return f"{size / _GIB:.1f} GiB" if size >= _GIB / 10 else f"{size * 1024 / _GIB:.1f} MiB"


def columns(rows: Sequence[Sequence[str]], *, left: Sequence[int] = (0, 1, 2)) -> list[str]:
    """Align rows in columns. The columns `left` align to the left, all others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "   ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
