"""What jobs held in a period, added up by queue, user, namespace, phase or job.

A job's account (`status.gpuSeconds`) says what it held in its life, not when. A job that was
created within the period counts whole. Of an older one, the part that lies in the period is taken
in proportion to time from its creation to its end, and is named as estimated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from drumline.overview.held import STATES, held_gpu_seconds
from drumline.overview.jobs import NOT_SEEN
from drumline.overview.objects import JobObject, seconds
from drumline.overview.rows import UsageRow
from drumline_trainer.contract import plain

NO_USER: Final = "-"


def _user(job: JobObject) -> str:
    return job.spec.user or NO_USER


GROUPS: Final[Mapping[str, Callable[[JobObject], str]]] = {
    "queue": lambda job: job.spec.queue,
    "user": _user,
    "namespace": lambda job: job.metadata.namespace,
    "phase": lambda job: job.status.phase or NOT_SEEN,
    "job": lambda job: job.key,
}
"""What can be grouped by."""


@dataclass(slots=True)
class _Sum:
    jobs: int = 0
    estimated: float = 0.0
    by_state: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STATES, 0.0))


def usage_rows(
    jobs: Iterable[JobObject], *, by: Sequence[str], since: float | None, now: float
) -> tuple[UsageRow, ...]:
    """A row for each group, the largest use first.

    Args:
        jobs: of any phase.
        by: keys of `GROUPS`.
        since: the begin of the period, in seconds since the epoch; None: all that is known.
        now: its end.

    Raises:
        KeyError: there is no such group.
    """
    values = [GROUPS[name] for name in by]
    sums: dict[tuple[str, ...], _Sum] = defaultdict(_Sum)
    for job in jobs:
        held = held_gpu_seconds(job, now=now)
        part = _part_since(job, since=since, now=now)
        if not sum(held.values()) or not part:
            continue
        group = sums[tuple(plain(value(job)) for value in values)]
        group.jobs += 1
        for state in STATES:
            group.by_state[state] += held[state] * part
        if part < 1.0:
            group.estimated += sum(held.values()) * part
    rows = [_row(group, total) for group, total in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-row.gpu_seconds, row.by)))


def _part_since(job: JobObject, *, since: float | None, now: float) -> float:
    """Which part of its GPU-seconds lies in the period: 0 to 1."""
    if since is None:
        return 1.0
    begin = seconds(job.metadata.creation_timestamp)
    account = job.status.gpu_seconds
    counted = seconds(account.until) if account else None
    end = now if job.status.assignment is not None else counted or now
    if begin is None or begin >= since:
        return 1.0
    if end <= since or end <= begin:
        return 0.0
    return (end - since) / (end - begin)


def _row(group: tuple[str, ...], total: _Sum) -> UsageRow:
    by_state = {state: round(amount) for state, amount in total.by_state.items()}
    return UsageRow(
        by=group,
        jobs=total.jobs,
        gpu_seconds=sum(by_state.values()),
        estimated_gpu_seconds=round(total.estimated),
        **by_state,
    )
