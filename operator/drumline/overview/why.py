"""Explain a job's state: its reason, the jobs before it, and the holders of what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from drumline.overview.advice import advice_for
from drumline.overview.budgets import budget_row
from drumline.overview.jobs import CANNOT_START, is_in_line, job_row, lines
from drumline.overview.objects import ClusterObjects, JobObject, seconds
from drumline.overview.overrides import override_rows
from drumline.overview.pool_units import PoolUnits
from drumline.overview.queues import cohorts_of, held_by_queue, quota_rows
from drumline.overview.rows import BudgetRow, HolderRow, WhyCard
from drumline.overview.workloads import workload_uses
from drumline_api.objects.custom import StoredTrainingQueue
from drumline_contract import plain

_NOT_FOR_GPUS: Final = frozenset(
    ("BackingOff", "BudgetSpent", "CheckpointFolderInUse", "WaitingForGroup", "WaitingForJobs")
)
"""Reasons of jobs that no holder of GPUs keeps waiting."""
SHOWN: Final = 10
"""Jobs in each list of a card."""


def why_card(cluster: ClusterObjects, job: JobObject) -> WhyCard:
    """Return the card of one of the cluster's jobs.

    Args:
        cluster: the known objects. Missing ones are left out of the card.
        job: one of its jobs.
    """
    now, queue = cluster.as_of, job.spec.queue
    line = lines(cluster.jobs, cluster.priorities).get(queue, ())
    # Positions by key, because the cut lists below need them too.
    places = {each.key: at for at, each in enumerate(line, start=1)}
    place = places.get(job.key)
    # A job that is not in line has nobody ahead.
    before = line[: place - 1] if place else ()
    known = next((each for each in cluster.queues if each.metadata.name == queue), None)
    overrides = override_rows([known] if known else (), now=now)
    units = PoolUnits(cluster.pools)
    quotas = quota_rows(known, held_by_queue(cluster.jobs, units).get(queue, {}), units)
    pools = pools_of(job, known)
    # Without rights on queues, the pools of the jobs' places are the best guess.
    if known is None:
        pools = pools or {quota.pool for quota in quotas}
    # Jobs of other pools wait in the same line, but do not compete.
    rivals = [
        each for each in before if known is None or not pools.isdisjoint(pools_of(each, known))
    ]
    return WhyCard(
        job=job_row(job, now=now, position=place, units=units),
        waiting_jobs=len(line),
        ahead=tuple(
            job_row(each, now=now, position=places[each.key], units=units)
            for each in rivals[:SHOWN]
        ),
        # Parts of GPUs count by their share, so the sum is in GPUs.
        gpus_ahead=float(sum(each.gpus * units.share(each) for each in rivals)),
        quotas=quotas,
        budget=_of_user(budget_row(known, now=now), job.spec.user or ""),
        # A running job has no holders before it.
        holders=_holders(cluster, job, pools=pools) if is_in_line(job) else (),
        advice=advice_for(job.status.reason or "", suspended=job.spec.suspend),
        override=next((row for row in overrides if row.job == job.key), None),
    )


def _of_user(budget: BudgetRow | None, user: str) -> BudgetRow | None:
    """Return the budget with only the entry of one user."""
    if budget is None:
        return None
    users = tuple(each for each in budget.users if each.user == plain(user))
    return msgspec.structs.replace(budget, users=users)


def pools_of(job: JobObject, queue: StoredTrainingQueue | None) -> frozenset[str]:
    """Return the pools that a job may use: the ones it names, or all with quota of its queue.

    Args:
        job: waits.
        queue: its queue; None: not known, and only the pools that the job names count.
    """
    # `gpuPool` and `gpuPools` exclude each other, so one of them is the list.
    named = [job.spec.gpu_pool] if job.spec.gpu_pool else job.spec.gpu_pools
    if queue is None:
        return frozenset(named or ())
    quotas = frozenset(quota.gpu_pool for quota in queue.spec.quotas)
    # A pool that the job names, but in which the queue has no quota, cannot be used.
    return quotas if named is None else quotas.intersection(named)


def _holders(
    cluster: ClusterObjects, job: JobObject, *, pools: AbstractSet[str]
) -> tuple[HolderRow, ...]:
    """Return the jobs that hold the GPUs or quota that a job waits for. Empty for other reasons.

    For quota, these are jobs of the cohort. For a user limit, the user's jobs in the queue.
    """
    queue, reason = job.spec.queue, job.status.reason or ""
    # No end of another job helps these.
    if reason in CANNOT_START or reason in _NOT_FOR_GPUS:
        return ()
    # A user limit is freed only by the same user's jobs in the same queue.
    if reason == "UserLimit":
        return holders_of(cluster, pools=pools, queues={queue}, user=job.spec.user or "")
    if reason == "SweepLimit":
        return holders_of(cluster, pools=pools, queues={queue})
    # Borrowed quota comes from the cohort, so all its queues may return it.
    if reason == "QuotaExhausted":
        cohorts = cohorts_of(cluster.queues)
        root = cohorts.get(queue, queue)
        members = {name for name, of in cohorts.items() if of == root}
        return holders_of(cluster, pools=pools, queues={queue, *members})
    return holders_of(cluster, pools=pools)


def holders_of(
    cluster: ClusterObjects,
    *,
    pools: AbstractSet[str],
    queues: AbstractSet[str] | None = None,
    user: str | None = None,
) -> tuple[HolderRow, ...]:
    """Return holders of GPUs in these pools: the next to end first, then the largest.

    Pods on nodes that are not known count where their queue holds foreign GPUs.

    Args:
        cluster: what is known of it.
        pools: the pools.
        queues: only holders that these queues pay for; None: all.
        user: only jobs of this user; None: all, and foreign pods.
    """
    rows = [
        HolderRow(
            job=plain(job.key),
            queue=plain(job.spec.queue),
            gpus=sum(gpus for pool, gpus in job.held_gpus.items() if pool in pools),
            expected_end=seconds(job.status.expected_end),
            partition=plain(job.spec.gpu_partition or ""),
        )
        for job in cluster.jobs
        # A job may hold GPUs in two pools. Only those in question are summed.
        if not pools.isdisjoint(job.held_gpus)
        and (queues is None or job.spec.queue in queues)
        and user in (None, job.spec.user or "")
    ]
    # Foreign pods have no user, so they never free a user limit.
    if user is None:
        rows += _foreign_holders(cluster, pools=pools, queues=queues)
    return tuple(sorted(rows, key=_soonest)[:SHOWN])


def _foreign_holders(
    cluster: ClusterObjects, *, pools: AbstractSet[str], queues: AbstractSet[str] | None
) -> Iterator[HolderRow]:
    where = {queue.metadata.name: _foreign_pools(queue) for queue in cluster.queues}
    for use in workload_uses(cluster):
        gpus = sum(gpus for pool, gpus in use.by_pool.items() if pool in pools)
        # Pods on unknown nodes have no pool. Their queue's own figure decides.
        if not where.get(use.queue, frozenset()).isdisjoint(pools):
            gpus += use.by_pool.get("", 0)
        if gpus and (queues is None or use.queue in queues):
            yield HolderRow(job=use.workload, queue=use.queue, gpus=gpus)


def _foreign_pools(queue: StoredTrainingQueue) -> frozenset[str]:
    """Return the pools in which a queue pays for foreign pods; before that is known, all of its."""
    usage = queue.status.usage
    if usage is None:
        return frozenset(quota.gpu_pool for quota in queue.spec.quotas)
    return frozenset(each.gpu_pool for each in usage if each.foreign_gpus)


def _soonest(row: HolderRow) -> tuple[float, float, str]:
    end = float("inf") if row.expected_end is None else row.expected_end
    return end, -row.gpus, row.job
