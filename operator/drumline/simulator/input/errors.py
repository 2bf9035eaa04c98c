"""What is wrong with a file, so that whoever wrote it can put it right: file, line, field, why."""

from __future__ import annotations


class BadFile(ValueError):  # noqa: N818 - read as a sentence: raise BadFile
    """A cluster file or a trace cannot be used; `str()` is one sentence for people."""

    def __init__(self, *, file: str, line: int | None, field: str, why: str) -> None:
        where = [file]
        if line is not None:
            where.append(f"line {line}")
        if field:
            where.append(f"field {field}")
        super().__init__(f"{', '.join(where)}: {why}")
        self.file = file
        self.line = line
        self.field = field
        self.why = why
