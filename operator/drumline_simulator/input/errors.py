"""Define the error of an invalid input file: file, line, field and reason."""

from __future__ import annotations


class InvalidFileError(ValueError):
    """A cluster file or a trace is invalid. `str()` is one sentence for the user."""

    def __init__(self, *, file: str, line: int | None, field: str, reason: str) -> None:
        where = [file]
        if line is not None:
            where.append(f"line {line}")
        if field:
            where.append(f"field {field}")
        super().__init__(f"{', '.join(where)}: {reason}")
        self.file = file
        self.line = line
        self.field = field
        self.why = reason
