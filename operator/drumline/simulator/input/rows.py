"""One row of a table that somebody else wrote: cells by name, read with what is wrong said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite

from drumline.simulator.input.errors import BadFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The cells of a row, all of them text."""

    file: str
    line: int | None
    cells: Mapping[str, str]

    def refused(self, field: str, why: str) -> BadFile:
        """What to raise about a field."""
        return BadFile(file=self.file, line=self.line, field=field, why=why)

    def text(self, field: str) -> str:
        """A cell; '' where it is empty or there is no such column."""
        return self.cells.get(field, "").strip()

    def has(self, field: str) -> bool:
        """Whether something stands there."""
        return bool(self.text(field))

    def whole(self, field: str, *, least: int | None = None) -> int:
        """A whole number; also one written as `8.0`."""
        value = self.number(field)
        if not value.is_integer():
            raise self.refused(field, f"must be a whole number, not {self.text(field)!r}")
        if least is not None and value < least:
            raise self.refused(field, f"must be at least {least}, not {self.text(field)!r}")
        return int(value)

    def seconds(self, field: str) -> float:
        """A time or a length of time: a number that is not negative."""
        value = self.number(field)
        if value < 0:
            raise self.refused(field, f"must not be negative, not {self.text(field)!r}")
        return value

    def number(self, field: str) -> float:
        """A finite number."""
        told = self.text(field)
        try:
            value = float(told)
        except ValueError:
            value = float("nan")
        if not isfinite(value):
            raise self.refused(field, f"must be a number, not {told!r}")
        return value

    def moment(self, field: str) -> float:
        """A date and time as seconds; without a time zone it is taken as UTC."""
        told = self.text(field)
        try:
            moment = datetime.fromisoformat(told)
        except ValueError:
            raise self.refused(
                field, f"must be a date and time (2020-06-09 18:41:01), not {told!r}"
            ) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
