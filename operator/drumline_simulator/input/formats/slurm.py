"""Read tables of Slurm jobs: Helios (SenseTime, 2020) and Acme (Shanghai AI Laboratory, 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drumline_simulator.input.formats.tables import rows
from drumline_simulator.input.rows import Row
from drumline_simulator.input.trace import TraceJob

_SHARED = ("job_id", "user", "gpu_num", "node_num", "submit_time", "duration")


def read_helios(lines: Iterable[str], *, file: str) -> Iterator[TraceJob]:
    """Return the GPU jobs of `cluster_log.csv`. A virtual cluster is a queue.

    Raises:
        InvalidFileError: a row is invalid. The error names the first one.
    """
    for row in rows(lines, file=file, needed=(*_SHARED, "vc")):
        yield from _job(row, seconds=row.seconds("duration"), queue=row.text("vc"))


def read_acme(lines: Iterable[str], *, file: str) -> Iterator[TraceJob]:
    """Return the GPU jobs of `trace_seren.csv` or `trace_kalos.csv`.

    The workload type is the queue, because the tables have no better column. A job without a
    duration has not ended.

    Raises:
        InvalidFileError: a row is invalid. The error names the first one.
    """
    for row in rows(lines, file=file, needed=(*_SHARED, "type")):
        seconds = row.seconds("duration") if row.has("duration") else 0.0
        yield from _job(row, seconds=seconds, queue=row.text("type"))


def _job(row: Row, *, seconds: float, queue: str) -> Iterator[TraceJob]:
    """Return the job of a row, or None if it had no GPU or never ran."""
    gpus = row.integer("gpu_num", least=0)
    if not gpus or not seconds:
        return
    nodes = row.integer("node_num", least=1)
    yield TraceJob(
        line=row.line,
        name=row.text("job_id"),
        submit_seconds=row.timestamp("submit_time"),
        gpus=gpus,
        duration_seconds=seconds,
        user=row.text("user"),
        queue=queue,
        nodes=nodes if gpus % nodes == 0 else None,
    )
