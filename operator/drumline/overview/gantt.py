"""Jobs over time: the past, and the operator's expectation.

A job's account has its stays on GPUs. Between them it waited, because its place in the line is kept
over preemptions (`queuedAt`). Before it was last queued, for example after a suspension, nothing is
drawn between the stays. For a job without stays, from an older operator, the last one is drawn from
its status.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from drumline.overview.rows import GanttBar, GanttRow, JobRow

WAITED: Final = "Waited"
HELD: Final = "Held"
PLANNED: Final = "Planned"
STARTS_WITHIN: Final = "StartsWithin"
STATES: Final = (WAITED, HELD, PLANNED, STARTS_WITHIN)


def rows_of(
    jobs: Sequence[JobRow], *, now: float, since: float, until: float
) -> tuple[GanttRow, ...]:
    """Return the rows of these jobs in their order.

    Args:
        jobs: rows of the jobs.
        now: Unix time in seconds.
        since: Unix time of the left edge.
        until: Unix time of the right edge.
    """
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
    queued, stays = job.queued_at or job.created_at, _stays(job, now=now)
    holds = bool(job.pool) and job.finished_at is None
    waits_until = max(now, queued or now) if job.position is not None else None
    waited = queued
    for begins, ends in stays:
        if waited is not None and waited < begins:
            yield GanttBar(state=WAITED, begins_at=waited, ends_at=begins)
        yield GanttBar(state=HELD, begins_at=begins, ends_at=ends)
        if waited is not None:
            waited = max(waited, ends)
    if waits_until is not None:
        if waited is not None:
            yield GanttBar(state=WAITED, begins_at=waited, ends_at=waits_until)
        if job.expected_start is not None:
            begins = max(job.expected_start, now)
            by = job.expected_start_by
            yield GanttBar(
                state=STARTS_WITHIN,
                begins_at=begins,
                ends_at=None if by is None else max(by, begins),
            )
    elif holds:
        expected = job.expected_end
        ends = None if expected is None else max(expected, now)
        yield GanttBar(state=PLANNED, begins_at=now, ends_at=ends)


def _stays(job: JobRow, *, now: float) -> Sequence[tuple[float, float]]:
    """Return the periods in which a job held any GPUs, in the order of time."""
    stays: list[tuple[float, float]] = []
    for stay in job.stays:
        if stays and stays[-1][1] >= stay.begins_at:
            stays[-1] = (stays[-1][0], stay.ends_at)
        else:
            stays.append((stay.begins_at, stay.ends_at))
    holds, admitted = bool(job.pool) and job.finished_at is None, job.admitted_at
    if not stays and admitted is not None and (holds or job.finished_at is not None):
        end = now if job.finished_at is None else job.finished_at
        return [(admitted, max(end, admitted))]
    return stays


def _within(bar: GanttBar, since: float, until: float) -> bool:
    return bar.begins_at < until and (bar.ends_at is None or bar.ends_at > since)
