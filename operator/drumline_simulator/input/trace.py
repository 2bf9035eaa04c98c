"""Read and write a trace: one row per job, as CSV with named columns.

``submit_seconds, gpus, duration_seconds, user`` are required; ``name, queue, priority, nodes,
min_nodes, max_runtime_seconds, checkpoint_seconds, required_level, preferred_level`` are optional.
Unknown columns are rejected: a misspelt column would change a result silently.

Rows are streamed, so a trace needs only the memory of its jobs.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Final

from drumline_simulator.input.errors import InvalidFileError
from drumline_simulator.input.rows import Row

NEEDED: Final = ("submit_seconds", "gpus", "duration_seconds", "user")
OPTIONAL: Final = (
    "name",
    "queue",
    "priority",
    "nodes",
    "min_nodes",
    "max_runtime_seconds",
    "checkpoint_seconds",
    "required_level",
    "preferred_level",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One row: a job's request, independent of the cluster."""

    line: int | None
    """Line in the file. None if the format has no meaningful lines."""
    name: str
    submit_seconds: float
    gpus: int
    duration_seconds: float
    user: str
    queue: str = ""
    """Queue. Empty: the cluster's default queue."""
    priority: int = 0
    nodes: int | None = None
    """Number of nodes. None: as few as possible."""
    min_nodes: int | None = None
    """Minimum size of an elastic job."""
    max_runtime_seconds: float | None = None
    checkpoint_seconds: float | None = None
    """Seconds between periodic checkpoints. None: the value of the cluster file."""
    required_level: str | None = None
    preferred_level: str | None = None


def read(lines: Iterable[str], *, file: str) -> Iterator[TraceJob]:
    """Return the jobs of a trace.

    Args:
        lines: lines of the file, the header first.
        file: name of the file, for error messages.

    Raises:
        InvalidFileError: a row is invalid. The error names the first one.
    """
    reader = csv.reader(lines)
    # An empty file has no header, so the missing columns are reported.
    header = next(reader, list[str]())
    columns = _columns(header, file=file)
    for number, cells in enumerate(reader, start=1):
        # csv yields an empty row for an empty line at the end of a file.
        if not cells:
            continue
        # The reader's own number: a quoted cell may span several lines.
        line = reader.line_num
        if len(cells) != len(columns):
            why = f"has {len(cells)} cells, the header has {len(columns)}"
            raise InvalidFileError(file=file, line=line, field="", reason=why)
        row = Row(file=file, line=line, cells=dict(zip(columns, cells, strict=True)))
        yield _job(row, number=number)


def write(jobs: Iterable[TraceJob]) -> str:
    """Return a trace as CSV, with the optional columns that any job uses."""
    rows = list(jobs)
    # Unused columns are left out, so that a small trace stays readable.
    used = [name for name in OPTIONAL if any(_cell(job, name) for job in rows)]
    columns = (*NEEDED, *used)
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(job, name) for name in columns] for job in rows)
    return text.getvalue()


def _columns(header: Sequence[str], *, file: str) -> list[str]:
    names = [name.strip() for name in header]
    for name in NEEDED:
        if name not in names:
            raise InvalidFileError(file=file, line=1, field=name, reason="this column is missing")
    for name in names:
        if name not in NEEDED and name not in OPTIONAL:
            known = ", ".join((*NEEDED, *OPTIONAL))
            raise InvalidFileError(
                file=file, line=1, field=name, reason=f"unknown column; the columns are: {known}"
            )
        # A repeated column would silently overwrite the first one in the dict.
        if names.count(name) > 1:
            raise InvalidFileError(file=file, line=1, field=name, reason="this column occurs twice")
    return names


def _job(row: Row, *, number: int) -> TraceJob:
    gpus = row.integer("gpus", least=1)
    nodes = row.integer("nodes", least=1) if row.has("nodes") else None
    # A gang has equal pods, so the GPUs must divide.
    if nodes is not None and gpus % nodes:
        raise row.error("nodes", f"{gpus} GPUs cannot be spread evenly over {nodes} nodes")
    smallest = row.integer("min_nodes", least=1) if row.has("min_nodes") else None
    # A minimum without a size has no meaning: the size is chosen by the cluster.
    if smallest is not None and (nodes is None or smallest > nodes):
        raise row.error("min_nodes", "must be at most `nodes`, which must be given with it")
    limit = row.seconds("max_runtime_seconds") if row.has("max_runtime_seconds") else None
    pause = row.seconds("checkpoint_seconds") if row.has("checkpoint_seconds") else None
    # An interval of 0 would mean an endless sequence of saves.
    if pause == 0:
        raise row.error("checkpoint_seconds", "must be above 0")
    return TraceJob(
        line=row.line,
        name=row.text("name") or f"job-{number}",
        submit_seconds=row.seconds("submit_seconds"),
        gpus=gpus,
        duration_seconds=row.seconds("duration_seconds"),
        user=row.text("user"),
        queue=row.text("queue"),
        priority=row.integer("priority") if row.has("priority") else 0,
        nodes=nodes,
        min_nodes=smallest,
        max_runtime_seconds=limit,
        checkpoint_seconds=pause,
        required_level=row.text("required_level") or None,
        preferred_level=row.text("preferred_level") or None,
    )


def _cell(job: TraceJob, name: str) -> str:
    """Return a cell of the CSV. It is empty for an unset optional value."""
    value = getattr(job, name)
    if value is None or (name == "priority" and not value):
        return ""
    # Trailing zeros are cut, so that reading and writing gives the same text.
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
