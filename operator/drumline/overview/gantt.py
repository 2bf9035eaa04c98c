"""Jobs over time: what was, and what the operator expects.

A job's status has one stretch of each kind: since when it waits or waited, since when it holds its
GPUs or until when it held them, and the forecasts. What a preemption ended lies within Waited: when
exactly, the status does not keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from drumline.overview.jobs import job_rows, lines, positions
from drumline.overview.objects import ClusterObjects
from drumline.overview.rows import GanttBar, GanttRow, JobRow

WAITED: Final = "Waited"
HELD: Final = "Held"
PLANNED: Final = "Planned"
STARTS_WITHIN: Final = "StartsWithin"
STATES: Final = (WAITED, HELD, PLANNED, STARTS_WITHIN)


def gantt_rows(cluster: ClusterObjects, *, since: float, until: float) -> tuple[GanttRow, ...]:
    """A row for each job of which something lies in the period, in the order of `list`.

    Args:
        cluster: its jobs and priority classes.
        since: begin of the period, in seconds since the epoch.
        until: its end.
    """
    places = positions(lines(cluster.jobs, cluster.priorities))
    rows = job_rows(cluster.jobs, now=cluster.as_of, places=places)
    return rows_of(rows, now=cluster.as_of, since=since, until=until)


def rows_of(
    jobs: Sequence[JobRow], *, now: float, since: float, until: float
) -> tuple[GanttRow, ...]:
    """The rows of these jobs, in their order."""
    rows: list[GanttRow] = []
    for job in jobs:
        bars = tuple(bar for bar in _bars(job, now=now) if _within(bar, since, until))
        if bars:
            rows.append(
                GanttRow(
                    job=f"{job.namespace}/{job.name}",
                    queue=job.queue,
                    phase=job.phase,
                    gpus=job.gpus,
                    position=job.position,
                    bars=bars,
                )
            )
    return tuple(rows)


def _bars(job: JobRow, *, now: float) -> Iterator[GanttBar]:
    queued, admitted = job.queued_at or job.created_at, job.admitted_at
    holds = bool(job.pool)
    if job.position is not None:
        if queued is not None:
            yield GanttBar(state=WAITED, begins_at=queued, ends_at=max(now, queued))
        if job.expected_start is not None:
            begins = max(job.expected_start, now)
            by = job.expected_start_by
            ends = None if by is None else max(by, begins)
            yield GanttBar(state=STARTS_WITHIN, begins_at=begins, ends_at=ends)
        return
    if admitted is None or (not holds and job.finished_at is None):
        return  # suspended, or never admitted: when it gave its GPUs back is not known
    if queued is not None and queued < admitted:
        yield GanttBar(state=WAITED, begins_at=queued, ends_at=admitted)
    end = job.finished_at if job.finished_at is not None else now
    yield GanttBar(state=HELD, begins_at=admitted, ends_at=max(end, admitted))
    if job.finished_at is None:
        expected = job.expected_end
        ends = None if expected is None else max(expected, now)
        yield GanttBar(state=PLANNED, begins_at=now, ends_at=ends)


def _within(bar: GanttBar, since: float, until: float) -> bool:
    return bar.begins_at < until and (bar.ends_at is None or bar.ends_at > since)
