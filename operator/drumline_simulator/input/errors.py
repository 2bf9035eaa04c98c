"""Define the error of an invalid input file: file, line, field and reason."""

from __future__ import annotations


class InvalidFileError(ValueError):
    """A cluster file or a trace is invalid. `str()` is one sentence for the user.

    Args:
        file: name of the file, for errors.
        line: number of the line, from 1.
        field: name of the field or column.
        reason: what is wrong, and the valid form.
    """

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
