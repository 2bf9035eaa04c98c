"""Apply overrides: one named job may take GPUs that other queues are guaranteed, until a moment.

An administrator writes the override onto the job's queue. While it is in effect (`Override.until`),
the job may preempt jobs of other queues that hold no more than their quota (`Reclaim.OVERRIDE`),
and no job preempts it. All limits stay: quota of the cohort, borrowing, lending, users, budgets,
minimum runtime.

Without more, the victims' queues would be entitled to their quota at once, and would reclaim it
from other jobs of the job's queue. So the quota moves with the job: what its queue holds above its
own quota because of it is added to that quota, and taken from the unused quota of other queues. At
`until` the quota is as written again, and the other queues reclaim the GPUs as usual.

Example: queues a and b with 4 GPUs each. Job H of a has an override and needs 8. It takes 4 GPUs
from a job of b. Until the override ends, a counts with a quota of 8 and b with 0. Then b reclaims
its 4 GPUs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from drumline_scheduler.model import Admitted, Gang, Override, Queue, Snapshot
from drumline_scheduler.quota.cohorts import QueueTree
from drumline_scheduler.quota.pool_selection import requested_pools


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedOverrides:
    """A snapshot and its pending gangs with the overrides that are in effect."""

    snapshot: Snapshot
    pending: tuple[Gang, ...]
    again_at: float | None = None
    """Time at which the first of them ends."""


def with_overrides(
    snapshot: Snapshot, *, pending: tuple[Gang, ...], now: float
) -> AppliedOverrides:
    """Apply the overrides of all queues. O(queues) if there are none.

    Args:
        snapshot: the snapshot of a cycle.
        pending: its waiting gangs.
        now: seconds on the clock of `Override.until`.
    """
    active = active_overrides(snapshot.queues, now=now)
    if not active:
        return AppliedOverrides(snapshot=snapshot, pending=pending)

    def marked(gang: Gang) -> Gang:
        override = active.get((gang.queue, gang.key))
        return gang if override is None or gang.is_foreign else replace(gang, override=override)

    pending = tuple(map(marked, pending))
    admitted = tuple(
        held
        if held.is_residual or (held.gang.queue, held.gang.key) not in active
        else replace(held, gang=marked(held.gang))
        for held in snapshot.admitted
    )
    # Quota follows the job when its places are kept for it, and no longer when it leaves.
    holders = Counter[tuple[str, str]]()
    for held in admitted:
        if held.gang.override is not None and not held.leaving:
            holders[held.pool, held.gang.queue] += held.gpus
    for gang in pending:
        if gang.override is not None and gang.nominated:
            holders[gang.nominated_pool, gang.queue] += _kept_gpus(gang)
    snapshot = replace(snapshot, admitted=admitted)
    return AppliedOverrides(
        snapshot=replace(snapshot, queues=_moved_quota(snapshot, holders=holders, pending=pending)),
        pending=pending,
        again_at=min(override.until for override in active.values()),
    )


def active_overrides(queues: Iterable[Queue], *, now: float) -> dict[tuple[str, str], Override]:
    """Return the overrides in effect, by queue and key of the job."""
    return {
        (queue.name, override.job): override
        for queue in queues
        for override in queue.overrides
        if now < override.until
    }


def gpus_below_guarantee(
    snapshot: Snapshot, *, pending: Iterable[Gang], now: float
) -> dict[tuple[str, str], int]:
    """Return the GPUs that jobs with an override keep from other queues now.

    These are GPUs within the quota of other queues that their waiting jobs request, at most those
    that the job holds.

    Args:
        snapshot: the cluster, with the quotas as written.
        pending: the waiting gangs.
        now: seconds on the clock of `Override.until`.

    Returns:
        GPUs, or parts in a pool with partitions, by queue and key of the job.
    """
    active = active_overrides(snapshot.queues, now=now)
    below = dict.fromkeys(active, 0)
    if not active:
        return below
    used, waiting = _usage(snapshot.admitted), list(pending)
    holding = Counter[tuple[str, str, str]]()
    for held in snapshot.admitted:
        if (held.gang.queue, held.gang.key) in active and not held.is_residual:
            holding[held.pool, held.gang.queue, held.gang.key] += held.gpus
    for pool in sorted({pool for pool, *_ in holding}):
        missing = {
            queue.name: _missing(queue, pool=pool, used=used[pool, queue.name], waiting=waiting)
            for queue in snapshot.queues
        }
        for (where, name, key), gpus in sorted(holding.items()):
            if where != pool:
                continue
            left = gpus
            for other in sorted(missing.keys() - {name}):
                taken = min(left, missing[other])
                left -= taken
                missing[other] -= taken
                below[name, key] += taken
    return below


def _missing(queue: Queue, *, pool: str, used: int, waiting: Iterable[Gang]) -> int:
    """Return the GPUs within a queue's quota that its waiting gangs request and do not have."""
    unused = queue.nominal.get(pool, 0) - used
    if unused <= 0:
        return 0
    wanted = sum(
        gang.gpus_at(gang.legal_sizes[0])
        for gang in waiting
        if gang.queue == queue.name and pool in (requested_pools(gang) or (pool,))
    )
    return min(unused, wanted)


def _usage(admitted: Iterable[Admitted]) -> Counter[tuple[str, str]]:
    """Return the GPUs by pool and queue once all evictions in progress have ended."""
    used = Counter[tuple[str, str]]()
    for held in admitted:
        if not held.leaving:
            given_up = sum(held.gang.request_of(place).gpus for place in held.giving_up)
            used[held.pool, held.gang.queue] += held.gpus - given_up
    return used


def _kept_gpus(gang: Gang) -> int:
    """Return the GPUs of the places that are kept for a nominated gang."""
    return gang.gpus_at(len(gang.nominated) - gang.extras)


def _moved_quota(
    snapshot: Snapshot, *, holders: Mapping[tuple[str, str], int], pending: Sequence[Gang]
) -> tuple[Queue, ...]:
    """Return the queues with the quota that follows jobs with an override.

    Args:
        snapshot: the running gangs and the queues.
        holders: GPUs of these jobs, by pool and queue.
        pending: waiting gangs. Nominated ones count as running.
    """
    if not holders:
        return snapshot.queues
    used = _usage(snapshot.admitted)
    for gang in pending:
        if gang.nominated:
            used[gang.nominated_pool, gang.queue] += _kept_gpus(gang)
    queues = {queue.name: queue for queue in snapshot.queues}
    tree = QueueTree(snapshot.queues)
    root = {name: tree.branches[leaf].path[-1] for name, leaf in tree.leaf_of.items()}
    parents = {queue.parent for queue in snapshot.queues}
    for (pool, name), gpus in sorted(holders.items()):
        if name not in queues:
            continue
        lacks = min(gpus, used[pool, name] - queues[name].nominal.get(pool, 0))
        # Quota that is nobody's guarantee moves first, then that of the queue which uses least.
        unused = {
            other: queues[other].nominal.get(pool, 0) - used[pool, other]
            for other in queues
            if other != name and root[other] == root[name]
        }
        for other in sorted(unused, key=lambda each: (each not in parents, -unused[each], each)):
            taken = min(lacks, unused[other])
            if taken > 0:
                lacks -= taken
                queues[name] = _with_quota(queues[name], pool=pool, gpus=taken)
                queues[other] = _with_quota(queues[other], pool=pool, gpus=-taken)
    return tuple(queues[queue.name] for queue in snapshot.queues)


def _with_quota(queue: Queue, *, pool: str, gpus: int) -> Queue:
    """Return a queue with more quota in a pool. What it may hold and keeps for itself stays."""

    def moved(figures: Mapping[str, int] | None, by: int) -> Mapping[str, int] | None:
        if not figures or pool not in figures:
            return figures
        return {**figures, pool: max(0, figures[pool] + by)}

    taken = dict(queue.overridden or {})
    if gpus < 0:
        taken[pool] = taken.get(pool, 0) - gpus
    return replace(
        queue,
        nominal={**queue.nominal, pool: queue.nominal.get(pool, 0) + gpus},
        lasting_nominal=moved(queue.lasting_nominal, gpus),
        borrowing_limit=moved(queue.borrowing_limit, -gpus),
        lending_limit=moved(queue.lending_limit, gpus),
        overridden=taken or None,
    )
