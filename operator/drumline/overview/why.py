"""Explain a job's state: its reason, the jobs before it, and the holders of what it needs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from drumline.overview.advice import advice_for
from drumline.overview.budgets import budget_row
from drumline.overview.jobs import is_in_line, job_row, lines
from drumline.overview.objects import ClusterObjects, JobObject, seconds
from drumline.overview.pool_units import PoolUnits
from drumline.overview.queues import held_by_queue, quota_rows
from drumline.overview.rows import BudgetRow, HolderRow, WhyCard
from drumline.overview.workloads import workload_uses
from drumline_contract import plain

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
    place = next((at for at, each in enumerate(line, start=1) if each.key == job.key), None)
    before = line[: place - 1] if place else ()
    known = next((each for each in cluster.queues if each.metadata.name == queue), None)
    units = PoolUnits(cluster.pools)
    quotas = quota_rows(known, held_by_queue(cluster.jobs, units).get(queue, {}), units)
    pools = {quota.pool for quota in quotas}
    return WhyCard(
        job=job_row(job, now=now, position=place, units=units),
        waiting_jobs=len(line),
        ahead=tuple(
            job_row(each, now=now, position=at, units=units)
            for at, each in enumerate(before[:SHOWN], start=1)
        ),
        gpus_ahead=float(sum(each.gpus * units.share(each) for each in before)),
        quotas=quotas,
        budget=_of_user(budget_row(known, now=now), job.spec.user or ""),
        holders=holders_of(cluster, pools=pools) if is_in_line(job) else (),
        advice=advice_for(job.status.reason or "", suspended=job.spec.suspend),
    )


def _of_user(budget: BudgetRow | None, user: str) -> BudgetRow | None:
    """Return the budget with only the entry of one user."""
    if budget is None:
        return None
    users = tuple(each for each in budget.users if each.user == plain(user))
    return msgspec.structs.replace(budget, users=users)


def holders_of(cluster: ClusterObjects, *, pools: AbstractSet[str]) -> tuple[HolderRow, ...]:
    """Return holders of GPUs in these pools: the next to end first, then the largest.

    The pool of foreign pods is not read. They count if their queue has quota.
    """
    rows = [
        HolderRow(
            job=plain(job.key),
            queue=plain(job.spec.queue),
            gpus=job.gpus,
            expected_end=seconds(job.status.expected_end),
            partition=plain(job.spec.gpu_partition or ""),
        )
        for job in cluster.jobs
        if not pools.isdisjoint(job.held_gpus)
    ]
    paying = {
        queue.metadata.name
        for queue in cluster.queues
        if pools & {quota.gpu_pool for quota in queue.spec.quotas}
    }
    rows += [
        HolderRow(job=use.workload, queue=use.queue, gpus=use.gpus)
        for use in workload_uses(cluster)
        if use.gpus and use.queue in paying
    ]
    return tuple(sorted(rows, key=_soonest)[:SHOWN])


def _soonest(row: HolderRow) -> tuple[float, float, str]:
    end = float("inf") if row.expected_end is None else row.expected_end
    return end, -row.gpus, row.job
