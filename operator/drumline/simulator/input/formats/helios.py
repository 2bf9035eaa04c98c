"""Helios (SenseTime, 2020): `cluster_log.csv`, one row for each job that Slurm was given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drumline.simulator.input.formats.tables import rows
from drumline.simulator.input.trace import TraceJob

_NEEDED = ("job_id", "user", "vc", "gpu_num", "node_num", "submit_time", "duration")


def read(lines: Iterable[str], *, file: str) -> Iterator[TraceJob]:
    """Its GPU jobs; a virtual cluster is a queue.

    Raises:
        BadFile: at the first row that is not usable.
    """
    for row in rows(lines, file=file, needed=_NEEDED):
        gpus = row.whole("gpu_num", least=0)
        seconds = row.seconds("duration")
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
            queue=row.text("vc"),
            nodes=nodes if gpus % nodes == 0 else None,
        )
