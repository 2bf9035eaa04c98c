"""Queues with their quotas and lines, and the share of each in its cohort."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Final

from drumline.overview.budgets import budget_row
from drumline.overview.jobs import CANNOT_START, Lines, job_row, lines
from drumline.overview.objects import GONE, ClusterObjects, JobObject, seconds
from drumline.overview.overrides import override_rows
from drumline.overview.pool_units import PoolUnits
from drumline.overview.rows import (
    JobRow,
    LineRow,
    QueueRow,
    QuotaRow,
    SharePart,
    ShareRow,
    WorkloadRow,
)
from drumline_api.objects.custom import StoredTrainingQueue, StoredWaitingWorkload
from drumline_contract import plain

QUEUE_KIND: Final = "TrainingQueue"
POOL_KIND: Final = "GpuPool"


def queue_rows(cluster: ClusterObjects, *, only: str | None = None) -> tuple[QueueRow, ...]:
    """Return a row for each queue by name, including queues that exist only in jobs.

    Args:
        cluster: its jobs, queues and priority classes.
        only: name of the only wanted queue, or None for all.
    """
    # Computed once for all queues, because each one needs a pass over all jobs.
    waiting = lines(cluster.jobs, cluster.priorities)
    known = {queue.metadata.name: queue for queue in cluster.queues}
    units = PoolUnits(cluster.pools)
    held = held_by_queue(cluster.jobs, units)
    # Jobs that hold places count as admitted, also while they recover.
    admitted = Counter(job.spec.queue for job in cluster.jobs if job.held_places is not None)
    # A queue that only jobs name still gets a row, so that a typo is visible.
    # A queue that the reader may not list still holds GPUs.
    all_names = {*known, *waiting, *held}
    names = sorted(all_names if only is None else {only} & all_names)
    rows: list[QueueRow] = []
    for name in names:
        quotas = quota_rows(cluster, known.get(name), held=held.get(name, {}))
        line = _line(waiting, name, now=cluster.as_of, units=units)
        rows.append(
            QueueRow(
                queue=plain(name),
                quotas=quotas,
                admitted_jobs=admitted[name],
                waiting_gpus=sum(job.whole_gpus for job in line),
                waiting=line,
                workloads=(known[name].status.pending_workloads or 0) if name in known else 0,
                waiting_workloads=_workloads(known.get(name)),
                budget=budget_row(known.get(name), now=cluster.as_of),
                stop_policy=plain(known[name].spec.stop_policy) if name in known else "None",
                absent="" if name in known else cluster.absence(QUEUE_KIND),
                overrides=override_rows([known[name]] if name in known else (), now=cluster.as_of),
            )
        )
    return tuple(rows)


def whole_line(row: QueueRow) -> tuple[LineRow, ...]:
    """Merge a queue's jobs and other workloads by position. Those without a position come last.

    A position that the operator gave to no workload goes to the next job.
    """
    # Workloads have positions from the operator. Jobs are ordered here.
    workloads = {each.position: each for each in row.waiting_workloads if each.position}
    left, line = deque(row.waiting), list[LineRow]()
    while left or workloads:
        place = len(line) + 1
        # A free position belongs to a job. Without jobs, the smallest position is next.
        workload = workloads.pop(place if left else min(workloads), None)
        if workload is None:
            job = left.popleft()
            line.append(_entry(job, name=f"{job.namespace}/{job.name}", position=place))
        else:
            # A workload whose place has passed moves behind the jobs before it.
            position = max(place, workload.position or place)
            line.append(_entry(workload, name=workload.workload, position=position))
    # Workloads without a position follow: the operator has not placed them yet.
    loose = (each for each in row.waiting_workloads if not each.position)
    return (*line, *(_entry(each, name=each.workload, position=None) for each in loose))


def _entry(row: JobRow | WorkloadRow, *, name: str, position: int | None) -> LineRow:
    return LineRow(
        name=name,
        gpus=row.gpus,
        position=position,
        queued_at=row.queued_at,
        waits_since=row.waits_since if isinstance(row, JobRow) else row.queued_at,
        message_at=row.message_at if isinstance(row, JobRow) else None,
        expected_start=row.expected_start,
        expected_start_by=row.expected_start_by,
        reason=row.reason,
        message=row.message,
        partition=row.partition if isinstance(row, JobRow) else "",
    )


def quota_rows(
    cluster: ClusterObjects, queue: StoredTrainingQueue | None, *, held: Mapping[str, int]
) -> tuple[QuotaRow, ...]:
    """Return the quota and the use of a queue by pool.

    The operator's own figure counts, which includes pods beside a job's places. Before it is
    written, the places of the jobs count.

    Args:
        cluster: its pools, and the kinds that were read.
        queue: the queue, or None if it was not read.
        held: GPUs of the places of its jobs, by pool.
    """
    units = PoolUnits(cluster.pools)
    pools = {pool.metadata.name for pool in cluster.pools}
    # A pool is gone only if the list of pools was read.
    are_read = cluster.absence(POOL_KIND) == GONE
    quotas = (
        {} if queue is None else {each.gpu_pool: each.nominal_gpus for each in queue.spec.quotas}
    )
    usage = [] if queue is None else queue.status.usage or []
    # Only the operator counts the GPUs of which a quota is a percentage.
    shares = {each.gpu_pool for each in queue.spec.quotas if each.nominal_percent} if queue else ()
    quotas |= {each.gpu_pool: each.nominal_gpus for each in usage if each.gpu_pool in shares}
    # The operator's figure overrides the sum of places, pool by pool.
    used = {**held, **{each.gpu_pool: each.used_gpus for each in usage}}
    foreign = {each.gpu_pool: each.foreign_gpus or 0 for each in usage}
    return tuple(
        QuotaRow(
            pool=plain(pool),
            nominal_gpus=quotas.get(pool, 0),
            used_gpus=used.get(pool, 0),
            foreign_gpus=foreign.get(pool, 0),
            parts_per_gpu=units.parts_per_gpu(pool),
            absent="" if queue is not None else cluster.absence(QUEUE_KIND),
            is_pool_gone=are_read and pool not in pools,
        )
        # A pool without quota is listed too if the queue holds GPUs there.
        for pool in sorted({*quotas, *(pool for pool, gpus in used.items() if gpus)})
    )


def held_by_queue(jobs: Iterable[JobObject], units: PoolUnits) -> Mapping[str, Mapping[str, int]]:
    """Sum the GPUs that jobs hold by queue and pool, in the units of the pool."""
    held: dict[str, Counter[str]] = defaultdict(Counter)
    for job in jobs:
        # Parts of GPUs are converted here, so that all pools add up in their own unit.
        for pool, gpus in job.held_gpus.items():
            held[job.spec.queue][pool] += gpus * units.parts_of(job)
    return held


def share_rows(cluster: ClusterObjects) -> tuple[ShareRow, ...]:
    """Return a row for each queue: its part of the cohort's use, and the share of its weight.

    A queue that only jobs name has no quota and no share. It does not exist, or may not be
    read.
    """
    known = {queue.metadata.name: queue for queue in cluster.queues}
    # The tree is built once: `_due` walks it for each queue.
    tree = {name: _ancestors(name, known) for name in known}
    cohorts = cohorts_of(cluster.queues)
    waiting = lines(cluster.jobs, cluster.priorities)
    units = PoolUnits(cluster.pools)
    held = held_by_queue(cluster.jobs, units)
    had = {name: _past_use(queue) for name, queue in known.items()}
    # Idle queues have no claim, so they would only dilute the shares of the others.
    busy = {name for name in known if any(held.get(name, {}).values()) or waiting.get(name)}
    rows: list[ShareRow] = []
    # Queues of a cohort are listed together. Those that only jobs name come last.
    names = sorted(known, key=lambda name: (cohorts[name], name))
    for name in (*names, *sorted({*held, *waiting} - known.keys())):
        queue, cohort = known.get(name), cohorts.get(name, name)
        due = 0.0 if queue is None else _due(name, known, tree, busy=busy)
        # Shares are of the cohort's own use. Cohorts do not compete.
        whole = sum(had[member] for member in known if cohorts[member] == cohort)
        mine = had[name] / whole if whole and queue is not None else None
        quotas = quota_rows(cluster, queue, held=held.get(name, {}))
        nominal = {quota.pool: quota.nominal_gpus for quota in quotas}
        used = {quota.pool: quota.used_gpus for quota in quotas}
        # Borrowing is per pool: idle quota in one pool does not offset use in another.
        borrowed = {
            pool: max(0, gpus - nominal[pool]) if queue is not None else 0
            for pool, gpus in used.items()
        }
        line = _line(waiting, name, now=cluster.as_of, units=units)
        rows.append(
            ShareRow(
                queue=plain(name),
                cohort=plain(cohort),
                weight=0 if queue is None else queue.spec.weight,
                nominal_gpus=units.in_gpus(nominal),
                used_gpus=units.in_gpus(used),
                borrowed_gpus=units.in_gpus(borrowed),
                due=round(due, 4),
                had=None if mine is None else round(mine, 4),
                # `owed` is positive for a queue below its share, which the scheduler serves first.
                owed=None if mine is None else round(due - mine, 4),
                waiting_jobs=len(line),
                next_job=f"{line[0].namespace}/{line[0].name}" if line else "",
                next_start=line[0].expected_start if line else None,
                next_start_by=line[0].expected_start_by if line else None,
                parts=tuple(
                    SharePart(
                        pool=plain(pool),
                        gpus=units.in_gpus({pool: gpus}),
                        weight=units.share_weight(pool),
                    )
                    for pool, gpus in sorted(used.items())
                    if gpus
                ),
                absent="" if queue is not None else cluster.absence(QUEUE_KIND),
            )
        )
    return tuple(rows)


def cohorts_of(queues: Iterable[StoredTrainingQueue]) -> Mapping[str, str]:
    """Return the queue above all that each queue shares with; its own name if there is none."""
    known = {queue.metadata.name: queue for queue in queues}
    return {name: (name, *_ancestors(name, known))[-1] for name in known}


def _line(waiting: Lines, queue: str, *, now: float, units: PoolUnits) -> tuple[JobRow, ...]:
    return tuple(
        job_row(job, now=now, position=place, units=units)
        for place, job in enumerate(waiting.get(queue, ()), start=1)
    )


def _workloads(queue: StoredTrainingQueue | None) -> tuple[WorkloadRow, ...]:
    """Return the other workloads that wait for a queue, as the operator last wrote them."""
    waiting = (queue.status.waiting_workloads if queue else None) or ()
    return tuple(map(_workload, waiting))


def _workload(waiting: StoredWaitingWorkload) -> WorkloadRow:
    # A forecast of a workload that cannot start is older than its reason.
    is_dated = waiting.reason not in CANNOT_START
    return WorkloadRow(
        workload=plain(waiting.workload),
        gpus=waiting.gpus,
        position=waiting.position,
        queued_at=seconds(waiting.queued_at),
        expected_start=seconds(waiting.expected_start) if is_dated else None,
        expected_start_by=seconds(waiting.expected_start_by) if is_dated else None,
        reason=plain(waiting.reason),
        message=plain(waiting.message),
    )


def _past_use(queue: StoredTrainingQueue) -> float:
    """Past use as the operator wrote it; all queues of a cohort decay alike."""
    # Both fields are needed: a value without its time cannot be decayed.
    written = queue.status.share_seconds
    return float(written) if written and seconds(queue.status.share_seconds_at) else 0.0


def _ancestors(name: str, known: Mapping[str, StoredTrainingQueue]) -> tuple[str, ...]:
    """Return the queues above a queue, nearest first. None of them if the chain is broken.

    It is broken by a missing parent, or a queue that is its own ancestor. The scheduler treats such
    a queue as alone too (`scheduler.quota.cohorts`).
    """
    above: list[str] = []
    parent = known[name].spec.parent
    # The test for repeated names ends a cycle, which the API server cannot rule out.
    while parent is not None and parent in known and parent not in (name, *above):
        above.append(parent)
        parent = known[parent].spec.parent
    return tuple(above) if parent is None else ()


def _due(
    name: str,
    known: Mapping[str, StoredTrainingQueue],
    tree: Mapping[str, tuple[str, ...]],
    *,
    busy: Collection[str],
) -> float:
    """Return the share of its cohort that a queue is entitled to.

    At each level it is the queue's weight over the sum with its siblings. The use of a queue with
    queues below it counts as a member of weight 1 beside them.
    Without jobs of its own, such a queue is entitled to nothing.

    Args:
        name: name of the queue.
        known: all queues.
        tree: the queues above each, nearest first.
        busy: queues that have jobs of their own.
    """
    part = 1.0
    if below := _weights_below(name, known, tree):
        # An inner queue competes with its children as one member of weight 1.
        part = 1.0 / (1 + below) if name in busy else 0.0
    # From the queue up to the root, each level multiplies the part.
    for member, parent in pairwise((name, *tree[name])):
        whole = (parent in busy) + _weights_below(parent, known, tree)
        part *= _weight(known[member]) / whole if whole else 0.0
    return part


def _weight(queue: StoredTrainingQueue) -> int:
    """0 at least: an object that an older schema took may have any figure."""
    return max(0, queue.spec.weight)


def _weights_below(
    name: str, known: Mapping[str, StoredTrainingQueue], tree: Mapping[str, tuple[str, ...]]
) -> int:
    return sum(_weight(known[child]) for child, above in tree.items() if above[:1] == (name,))
