"""Acme (Shanghai AI Laboratory, 2023): `trace_seren.csv` (Slurm) and `trace_kalos.csv`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drumline.simulator.input.formats.tables import rows
from drumline.simulator.input.trace import TraceJob

_NEEDED = ("job_id", "user", "node_num", "gpu_num", "type", "submit_time", "duration")


def read(lines: Iterable[str], *, file: str) -> Iterator[TraceJob]:
    """Its GPU jobs; the type of workload is the queue, as there is nothing else like one.

    Raises:
        BadFile: at the first row that is not usable.
    """
    for row in rows(lines, file=file, needed=_NEEDED):
        gpus = row.whole("gpu_num", least=0)
        seconds = row.seconds("duration") if row.has("duration") else 0.0
        if not gpus or not seconds:
            continue
        nodes = row.whole("node_num", least=1)
        yield TraceJob(
            line=row.line,
            name=row.text("job_id"),
            submit_seconds=row.moment("submit_time"),
            gpus=gpus,
            duration_seconds=seconds,
            user=row.text("user"),
            queue=row.text("type"),
            nodes=nodes if gpus % nodes == 0 else None,
        )
