"""Read Alibaba's GPU clusters: PAI tasks of 2020 and the pods of 2023.

Both clusters share GPUs between jobs. Here a job that requests a part of a GPU gets a whole GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil

from drumline_simulator.input.formats.tables import rows
from drumline_simulator.input.trace import TraceJob

_TASKS = ("job_name", "inst_num", "status", "start_time", "end_time", "plan_gpu")
_PODS = ("name", "num_gpu", "qos", "creation_time", "deletion_time", "scheduled_time")
_PERCENT = 100


def read_2020(lines: Iterable[str], *, file: str) -> Iterator[TraceJob]:
    """Return the finished GPU tasks of `pai_task_table.csv` with its header.

    `plan_gpu` is in percent of a GPU for each instance. The table has no users, because they are in
    `pai_job_table`. A joined `user` column is read. Otherwise each job is its own user.
    `start_time` is used as the submission time.

    Raises:
        InvalidFileError: a row is invalid. The error names the first one.
    """
    for row in rows(lines, file=file, needed=_TASKS):
        if not row.has("plan_gpu") or not row.has("end_time") or not row.has("start_time"):
            continue
        per_node = ceil(row.seconds("plan_gpu") / _PERCENT)
        begins, ends = row.seconds("start_time"), row.seconds("end_time")
        if not per_node or ends <= begins:
            continue
        nodes = row.integer("inst_num", least=1)
        yield TraceJob(
            line=row.line,
            name=f"{row.text('job_name')}-{row.text('task_name') or row.line}",
            submit_seconds=begins,
            gpus=per_node * nodes,
            duration_seconds=ends - begins,
            user=row.text("user") or row.text("job_name"),
            queue=row.text("gpu_type"),
            nodes=nodes,
        )


def read_2023(lines: Iterable[str], *, file: str) -> Iterator[TraceJob]:
    """Return pods with GPUs of `openb_pod_list_*.csv` that were scheduled and deleted.

    Raises:
        InvalidFileError: a row is invalid. The error names the first one.
    """
    for row in rows(lines, file=file, needed=_PODS):
        gpus = row.integer("num_gpu", least=0)
        if not gpus or not row.has("scheduled_time") or not row.has("deletion_time"):
            continue
        seconds = row.seconds("deletion_time") - row.seconds("scheduled_time")
        if seconds <= 0:
            continue
        yield TraceJob(
            line=row.line,
            name=row.text("name"),
            submit_seconds=row.seconds("creation_time"),
            gpus=gpus,
            duration_seconds=seconds,
            user=row.text("qos"),
            queue=row.text("qos"),
            nodes=1,
        )
