"""Render one screen of a cluster: pools and queues as bars, and the jobs. Rows in, lines out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from drumline.overview.nodes import READY
from drumline.overview.queues import whole_line
from drumline.overview.rows import JobRow, LineRow, NodeRow, QueueRow
from drumline.overview.workloads import FOREIGN_PHASE, WorkloadUse
from drumline_cli.columns import columns
from drumline_cli.formatting import count, duration, gpus, gpus_of, many
from drumline_cli.overview import tables

_BAR: Final = 24
# More bars would push the jobs off a small screen.
_MOST_BARS: Final = 6
_ENDED_SECONDS: Final = 900.0
"""Time for which an ended job is shown."""
_NOTHING: Final = "-"
_KEYS: Final = "q quits, up and down scroll, p pauses"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopRows:
    """Rows that a screen shows.

    Attributes:
        as_of: time of the read, seconds since the epoch.
        jobs: jobs in the order of `job_rows`.
        nodes: nodes of all pools. Empty if the reader may not list them.
        queues: all queues, with the other pending workloads.
        workloads: GPUs of pods that belong to no job.
        remarks: objects that could not be read.
    """

    as_of: float
    jobs: Sequence[JobRow]
    nodes: Sequence[NodeRow]
    queues: Sequence[QueueRow]
    workloads: Sequence[WorkloadUse] = ()
    remarks: Sequence[str] = ()


def render(
    rows: TopRows, *, width: int, height: int | None = None, first: int = 0, note: str = ""
) -> list[str]:
    """Return at most `height` lines of at most `width` characters. None: all jobs.

    Args:
        rows: the rows.
        width: width of the screen.
        height: height of the screen.
        first: number of jobs that are scrolled past.
        note: text for the last line instead of the keys.
    """
    # Phase 1: everything above the jobs. It never scrolls.
    bars = _bars(_pools(rows.nodes), _queues(rows.queues))
    head = [_title(rows), *bars, *rows.remarks]
    table = _table(rows)
    # Without a height the output is a pipe, so nothing is cut.
    if height is None:
        return [_clip(line, width) for line in (*head, "", *table)]
    heading, lines = table[:1], table[1:]
    # Phase 2: compute the visible part. Two lines belong to the gap and the keys.
    room = max(1, height - len(head) - len(heading) - 2)
    # Scrolling stops at the last line, even if jobs have ended since.
    first = max(0, min(first, len(lines) - room))
    below = max(0, len(lines) - first - room)
    foot = note or (f"{_KEYS}; {count(below)} more below" if below else _KEYS)
    body = [*head, "", *heading, *lines[first : first + room]][: height - 1]
    return [_clip(line, width) for line in (*body, foot)]


def _title(rows: TopRows) -> str:
    runs = [job for job in rows.jobs if job.pool and job.finished_at is None]
    waits = [job for job in rows.jobs if job.position is not None]
    parts = ["drumline top"]
    if rows.nodes:
        # In a pool with partitions, parts are converted to whole GPUs.
        held = sum(node.held_gpus / node.parts_per_gpu for node in rows.nodes)
        whole = gpus(sum(node.gpus / node.parts_per_gpu for node in rows.nodes))
        on = many(len(rows.nodes), "node")
        parts.append(f"{_number(held)} of {whole} held on {on}")
    parts.append(f"{many(len(runs), 'job')} with GPUs")
    parts.append(
        f"{many(len(waits), 'job')} pending for {gpus(sum(job.whole_gpus for job in waits))}"
    )
    parts.append(datetime.fromtimestamp(rows.as_of, tz=UTC).strftime("%H:%M:%SZ"))
    return "   ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    name: str
    used: float
    of: float | None
    """Total. None: it is not readable."""
    remark: str


def _pools(nodes: Sequence[NodeRow]) -> Iterator[_Bar]:
    for pool in sorted({node.pool for node in nodes}):
        own = [node for node in nodes if node.pool == pool]
        # Only unhealthy states are worth a remark.
        out = Counter(node.state for node in own if node.state != READY)
        foreign = sum(node.foreign_gpus / node.parts_per_gpu for node in own)
        remarks = [f"{_number(foreign)} by foreign pods"] if foreign else []
        remarks += [f"{count(number)} {state}" for state, number in sorted(out.items())]
        yield _Bar(
            name=pool,
            used=sum(node.held_gpus / node.parts_per_gpu for node in own),
            of=sum(node.gpus / node.parts_per_gpu for node in own),
            remark=", ".join(remarks),
        )


def _queues(queues: Sequence[QueueRow]) -> Iterator[_Bar]:
    # Queues with the longest line come first, because they need attention.
    for queue in sorted(queues, key=lambda each: (-each.waiting_gpus, each.queue)):
        foreign = sum(quota.foreign_gpus / quota.parts_per_gpu for quota in queue.quotas)
        nominal = sum(quota.nominal_gpus / quota.parts_per_gpu for quota in queue.quotas)
        remarks = (
            f"the queue {queue.absent}" if queue.absent else "",
            f"{_number(foreign)} by foreign pods" if foreign else "",
            f"{many(len(queue.waiting), 'job')} in line" if queue.waiting else "",
            f"{many(queue.workloads, 'other workload')} in line" if queue.workloads else "",
        )
        yield _Bar(
            name=f"queue {queue.queue}",
            used=sum(quota.used_gpus / quota.parts_per_gpu for quota in queue.quotas),
            of=None if queue.absent else nominal,
            remark=", ".join(filter(None, remarks)),
        )


def _number(amount: float) -> str:
    return gpus(amount).partition(" ")[0]


def _whole(bar: _Bar) -> str:
    return "?" if bar.of is None else _number(bar.of)


def _bars(*groups: Iterable[_Bar]) -> list[str]:
    """Return bars below each other, the first of each group, with the number of further bars."""
    cells: list[tuple[str, str, str, str]] = []
    for group in map(list, groups):
        cells += [
            (each.name, _filled(each), f"{_number(each.used)} of {_whole(each)}", each.remark)
            for each in group[:_MOST_BARS]
        ]
        if len(group) > _MOST_BARS:
            cells.append((f"and {count(len(group) - _MOST_BARS)} more", "", "", ""))
    return columns(cells, left=(0, 1, 3)) if cells else []


def _filled(bar: _Bar) -> str:
    """Return a bar. Usage beyond a quota fills the bar and shows in its figures."""
    share = min(1.0, bar.used / bar.of) if bar.of else float(bar.used > 0)
    # A used pool never looks empty, and a pool with free GPUs never looks full.
    filled = min(_BAR - 1, max(1, round(share * _BAR))) if 0 < share < 1 else round(share * _BAR)
    return "█" * filled + "░" * (_BAR - filled)


def shown_jobs(rows: TopRows) -> list[JobRow]:
    """Return the jobs without those that ended some time ago."""
    return [
        job
        for job in rows.jobs
        # A recently ended job stays visible, so that the user sees its result.
        if job.finished_at is None or rows.as_of - job.finished_at < _ENDED_SECONDS
    ]


def lines_of(rows: TopRows) -> int:
    """Return the number of lines of the table."""
    # Both kinds of lines scroll together, so both are counted.
    return len(shown_jobs(rows)) + len(_foreign_lines(rows))


def _foreign_lines(rows: TopRows) -> list[tuple[str, ...]]:
    """Return lines about GPUs of workloads that are not jobs."""
    rest = (*[_NOTHING] * 4,)
    holding = [
        (
            use.workload,
            use.queue,
            FOREIGN_PHASE,
            gpus_of(use.gpus, ""),
            *rest,
            _NOTHING if use.since is None else "for " + duration(rows.as_of - use.since),
            _NOTHING,
        )
        for use in rows.workloads
        if use.gpus
    ]
    waiting = [
        (
            each.name,
            queue.queue,
            "Waiting",
            str(each.gpus),
            *rest,
            _place(each, now=rows.as_of),
            each.reason,
        )
        for queue in rows.queues
        for each in whole_line(queue)
        # Names of other workloads contain their kind: namespace/kind/name.
        if each.name.count("/") > 1
    ]
    return [*holding, *waiting]


def _place(row: LineRow, *, now: float) -> str:
    start = f"starts {tables.starts(row, now=now)}"
    return f"#{row.position}, {start}" if row.position else _NOTHING


def _table(rows: TopRows) -> list[str]:
    now = rows.as_of
    heads = ("JOB", "QUEUE", "PHASE", "GPUS", "STEP", "LOSS", "TOK/S", "RESTARTS", "WHEN", "WHY")
    cells = [
        (
            f"{job.namespace}/{job.name}",
            job.queue,
            job.phase,
            gpus_of(job.gpus, job.partition),
            tables.step(job),
            job.loss or _NOTHING,
            _NOTHING if job.tokens_per_second is None else count(job.tokens_per_second),
            str(job.restarts or 0),
            _when(job, now=now),
            job.reason or _NOTHING,
        )
        for job in shown_jobs(rows)
    ]
    return columns([heads, *cells, *_foreign_lines(rows)], left=(0, 1, 2, 8, 9))


def _when(job: JobRow, *, now: float) -> str:
    # The most important time of each state, in one column.
    if job.finished_at is not None:
        return f"ended {duration(now - job.finished_at)} ago"
    if job.position is not None:
        return f"#{job.position}, starts {tables.starts(job, now=now)}"
    if job.expected_end is not None:
        return f"ends in {duration(job.expected_end - now)}"
    return "for " + duration(now - job.admitted_at) if job.admitted_at is not None else _NOTHING


def _clip(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: max(0, width - 1)]}…"
