"""Read Philly (Microsoft, 2017): `cluster_job_log`, a JSON list of jobs with their attempts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from drumline_simulator.input.errors import InvalidFileError
from drumline_simulator.input.rows import Row
from drumline_simulator.input.trace import TraceJob


def read(lines: Iterable[str], *, file: str) -> Iterator[TraceJob]:
    """Return the jobs that ran. A virtual cluster is a queue.

    A job has the GPUs of its last attempt with times, and the duration of all its attempts
    together, including its own failures. Entries of a JSON list have no line numbers, so errors
    count entries.

    Raises:
        InvalidFileError: the file is not JSON, or a job is invalid.
    """
    try:
        listed: object = json.loads("".join(lines))
    except json.JSONDecodeError as error:
        raise InvalidFileError(
            file=file, line=error.lineno, field="", reason=f"no JSON: {error.msg}"
        ) from None
    if not isinstance(listed, list):
        raise InvalidFileError(file=file, line=1, field="", reason="must be a list of jobs")
    for number, entry in enumerate(cast("list[object]", listed), start=1):
        job = _job(_mapping(entry, file=file, number=number, field=""), file=file, number=number)
        if job is not None:
            yield job


def _job(entry: Mapping[str, object], *, file: str, number: int) -> TraceJob | None:
    row = Row(
        file=f"{file}, job {number}",
        line=None,
        cells={name: str(value) for name, value in entry.items() if isinstance(value, str)},
    )
    for field in ("jobid", "submitted_time", "user", "vc"):
        if not row.has(field):
            raise InvalidFileError(file=row.file, line=None, field=field, reason="is missing")
    seconds, gpus, nodes = 0.0, 0, 0
    for attempt in _attempts(entry, file=file, number=number):
        cells = {k: str(v) for k, v in attempt.items() if isinstance(v, str) and v != "None"}
        times = Row(file=row.file, line=None, cells=cells)
        if not times.has("start_time") or not times.has("end_time"):
            continue
        seconds += max(0.0, times.timestamp("end_time") - times.timestamp("start_time"))
        used = [len(_gpus(node)) for node in _details(attempt)]
        gpus, nodes = sum(used), len(used)
    if not gpus or not seconds:
        return None
    return TraceJob(
        line=None,
        name=row.text("jobid"),
        submit_seconds=row.timestamp("submitted_time"),
        gpus=gpus,
        duration_seconds=seconds,
        user=row.text("user"),
        queue=row.text("vc"),
        nodes=nodes if gpus % nodes == 0 else None,
    )


def _attempts(
    entry: Mapping[str, object], *, file: str, number: int
) -> Iterator[Mapping[str, object]]:
    attempts = entry.get("attempts")
    if not isinstance(attempts, list):
        raise InvalidFileError(
            file=f"{file}, job {number}", line=None, field="attempts", reason="must be a list"
        )
    for attempt in cast("list[object]", attempts):
        yield _mapping(attempt, file=file, number=number, field="attempts")


def _details(attempt: Mapping[str, object]) -> list[object]:
    detail = attempt.get("detail")
    return cast("list[object]", detail) if isinstance(detail, list) else []


def _gpus(detail: object) -> list[object]:
    gpus = cast("dict[str, object]", detail).get("gpus") if isinstance(detail, dict) else None
    return cast("list[object]", gpus) if isinstance(gpus, list) else []


def _mapping(value: object, *, file: str, number: int, field: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise InvalidFileError(
            file=f"{file}, job {number}", line=None, field=field, reason="must be an object"
        )
    return cast("dict[str, object]", value)
