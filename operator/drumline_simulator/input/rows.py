"""Read one row of a table by column name, with errors that name file, line and field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite

from drumline_simulator.input.errors import InvalidFileError


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Cells of a row, all of them strings.

    Its methods raise InvalidFileError, with line and field, for a cell that is not valid.
    """

    file: str
    line: int | None
    cells: Mapping[str, str]

    def error(self, field: str, why: str) -> InvalidFileError:
        """Return the error to raise for a field."""
        return InvalidFileError(file=self.file, line=self.line, field=field, reason=why)

    def text(self, field: str) -> str:
        """Return a cell, or '' if it is empty or the column does not exist."""
        return self.cells.get(field, "").strip()

    def has(self, field: str) -> bool:
        """Return whether the cell is not empty."""
        return bool(self.text(field))

    def integer(self, field: str, *, least: int | None = None) -> int:
        """Return an integer, which may be written as `8.0`."""
        value = self.number(field)
        if not value.is_integer():
            raise self.error(field, f"must be a whole number, got {self.text(field)!r}")
        if least is not None and value < least:
            raise self.error(field, f"must be at least {least}, got {self.text(field)!r}")
        return int(value)

    def seconds(self, field: str) -> float:
        """Return a time or duration: a number that is not negative."""
        value = self.number(field)
        if value < 0:
            raise self.error(field, f"must not be negative, got {self.text(field)!r}")
        return value

    def number(self, field: str) -> float:
        """Return a finite number."""
        text = self.text(field)
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not isfinite(value):
            raise self.error(field, f"must be a number, got {text!r}")
        return value

    def timestamp(self, field: str) -> float:
        """Return a date and time in seconds since the epoch, in UTC if it has no time zone."""
        text = self.text(field)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise self.error(
                field, f"must be a date and time (2020-06-09 18:41:01), got {text!r}"
            ) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
