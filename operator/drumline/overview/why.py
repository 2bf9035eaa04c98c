"""Explain a job's state: its reason, the jobs before it, and the holders of what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from drumline.overview.advice import advice_for
from drumline.overview.budgets import budget_row
from drumline.overview.jobs import CANNOT_START, is_in_line, job_row, lines
from drumline.overview.objects import ClusterObjects, JobObject, seconds
from drumline.overview.overrides import override_rows
from drumline.overview.pool_units import PoolUnits, pools_by_node
from drumline.overview.queues import QUEUE_KIND, cohorts_of, held_by_queue, quota_rows
from drumline.overview.rows import BudgetRow, ForeignPodRow, HolderRow, WhyCard
from drumline.overview.workload_objects import JOB, QUEUE
from drumline.overview.workloads import gpus_of, payer, workload_uses, worth_of_resources
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
    quotas = quota_rows(cluster, known, held=held_by_queue(cluster.jobs, units).get(queue, {}))
    pools = pools_of(job, known)
    # Without rights on queues, the pools of the jobs' places are the best guess.
    if known is None:
        pools = pools or {quota.pool for quota in quotas}
    # Jobs of other pools wait in the same line, but do not compete.
    rivals = [
        each for each in before if known is None or not pools.isdisjoint(pools_of(each, known))
    ]
    wanted = _wanted_holders(cluster, job, pools=pools) if is_in_line(job) else None
    # A running job has no holders before it.
    foreign = () if wanted is None else foreign_pods(cluster, wanted)
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
        holders=() if wanted is None else holders_of(cluster, wanted),
        foreign_pods=foreign[:SHOWN],
        more_foreign_pods=max(0, len(foreign) - SHOWN),
        queue_absent="" if known is not None else cluster.absence(QUEUE_KIND),
        advice=advice_for(
            job.status.reason or "",
            suspended=job.spec.suspend,
            ended=job.status.phase in {"Succeeded", "Failed"},
        ),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedHolders:
    """Selection of the holders of GPUs.

    Attributes:
        pools: the pools of the GPUs.
        queues: only holders that these queues pay for. None: all.
        user: only jobs of this user. None: all, and foreign pods.
    """

    pools: AbstractSet[str]
    queues: AbstractSet[str] | None = None
    user: str | None = None

    def includes(self, queue: str) -> bool:
        """Return whether holders of this queue count. Empty: no queue pays."""
        return self.queues is None or queue in self.queues


def _wanted_holders(
    cluster: ClusterObjects, job: JobObject, *, pools: AbstractSet[str]
) -> WantedHolders | None:
    """Return whose GPUs or quota a job waits for. None: it waits for something else.

    For quota, these are jobs of the cohort. For a user limit, the user's jobs in the queue.
    """
    queue, reason = job.spec.queue, job.status.reason or ""
    # No end of another job helps these.
    if reason in CANNOT_START or reason in _NOT_FOR_GPUS:
        return None
    # A user limit is freed only by the same user's jobs in the same queue.
    if reason == "UserLimit":
        return WantedHolders(pools=pools, queues={queue}, user=job.spec.user or "")
    if reason == "SweepLimit":
        return WantedHolders(pools=pools, queues={queue})
    # Borrowed quota comes from the cohort, so all its queues may return it.
    if reason == "QuotaExhausted":
        cohorts = cohorts_of(cluster.queues)
        root = cohorts.get(queue, queue)
        members = {name for name, of in cohorts.items() if of == root}
        return WantedHolders(pools=pools, queues={queue, *members})
    return WantedHolders(pools=pools)


def holders_of(cluster: ClusterObjects, wanted: WantedHolders) -> tuple[HolderRow, ...]:
    """Return holders of GPUs: the next to end first, then the largest.

    Pods on nodes that are not known count where their queue holds foreign GPUs. Pods that name no
    queue are left out: `foreign_pods` has them.
    """
    pools, user = wanted.pools, wanted.user
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
        and wanted.includes(job.spec.queue)
        and user in (None, job.spec.user or "")
    ]
    # Foreign pods have no user, so they never free a user limit.
    if user is None:
        rows += _foreign_holders(cluster, wanted)
    return tuple(sorted(rows, key=_soonest)[:SHOWN])


def _foreign_holders(cluster: ClusterObjects, wanted: WantedHolders) -> Iterator[HolderRow]:
    where = {queue.metadata.name: _foreign_pools(queue) for queue in cluster.queues}
    named = replace(cluster, pods=tuple(pod for pod in cluster.pods if pod.metadata.label(QUEUE)))
    for use in workload_uses(named):
        gpus = sum(gpus for pool, gpus in use.by_pool.items() if pool in wanted.pools)
        # Pods on unknown nodes have no pool. Their queue's own figure decides.
        if not where.get(use.queue, frozenset()).isdisjoint(wanted.pools):
            gpus += use.by_pool.get("", 0)
        if gpus and wanted.includes(use.queue):
            yield HolderRow(job=use.workload, queue=use.queue, gpus=gpus)


def foreign_pods(cluster: ClusterObjects, wanted: WantedHolders) -> tuple[ForeignPodRow, ...]:
    """Return pods on nodes of the pools that no named queue pays for, the largest first."""
    if wanted.user is not None:
        return ()
    worth = worth_of_resources(cluster.pools)
    pool_of_node = pools_by_node(cluster.nodes, cluster.pools)
    rows: list[ForeignPodRow] = []
    for pod in cluster.pods:
        is_there = pool_of_node.get(pod.spec.node_name) in wanted.pools
        if not is_there or pod.has_ended or pod.metadata.label(JOB):
            continue
        namespace, named = pod.metadata.namespace, pod.metadata.label(QUEUE)
        queue = payer(cluster.queues, namespace, named=named)
        # A pod that its own label charges is one of `holders_of`.
        gpus = 0 if named and queue else gpus_of(pod, worth)
        if gpus and wanted.includes(queue):
            name = plain(f"{namespace}/{pod.metadata.name}")
            rows.append(ForeignPodRow(pod=name, gpus=gpus, node=plain(pod.spec.node_name)))
    return tuple(sorted(rows, key=lambda row: (-row.gpus, row.pod)))


def _foreign_pools(queue: StoredTrainingQueue) -> frozenset[str]:
    """Return the pools in which a queue pays for foreign pods; before that is known, all of its."""
    usage = queue.status.usage
    if usage is None:
        return frozenset(quota.gpu_pool for quota in queue.spec.quotas)
    return frozenset(each.gpu_pool for each in usage if each.foreign_gpus)


def _soonest(row: HolderRow) -> tuple[float, float, str]:
    end = float("inf") if row.expected_end is None else row.expected_end
    return end, -row.gpus, row.job
