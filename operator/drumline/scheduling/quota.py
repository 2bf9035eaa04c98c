"""Whether a gang may use its queue, and whether the queue's quota has room for it.

Nominal quota only: a queue's admitted jobs never add up to more GPUs in a pool than its nominal
quota there (I1), so no queue can be kept from its own quota by another one (I10). Where the quota
was lowered under running jobs, nothing more is admitted until usage is below it again.
"""

from __future__ import annotations

from collections.abc import Iterable

from drumline.scheduling.decisions import BlockReason
from drumline.scheduling.model import Admitted, Gang, Pool, Queue
from drumline.scheduling.refusals import Refusal, counted, named, necessary
from drumline.scheduling.view import Undo


class QuotaBook:
    """GPUs by queue and pool: what is promised to whom in this cycle."""

    def __init__(self, *, admitted: Iterable[Admitted]) -> None:
        self._jobs: dict[tuple[str, str], dict[str, Gang]] = {}
        self._usage: dict[tuple[str, str], int] = {}
        self._told: dict[tuple[str, str, int, int], Refusal] = {}
        """By queue, pool, GPUs held and GPUs needed: equal questions get the same answer."""
        for held in admitted:
            self.charge(gang=held.gang, pool=held.pool)

    def usage(self, *, queue: str, pool: str) -> int:
        """GPUs of the pool that the queue's jobs hold."""
        return self._usage.get((queue, pool), 0)

    def charge(self, *, gang: Gang, pool: str) -> None:
        """Count a gang in its queue."""
        account = (gang.queue, pool)
        self._jobs.setdefault(account, {})[gang.uid] = gang
        self._usage[account] = self._usage.get(account, 0) + gang.gpus

    def credit(self, *, gang: Gang, pool: str) -> Undo:
        """Imagine the gang gone."""
        account = (gang.queue, pool)
        del self._jobs[account][gang.uid]
        self._usage[account] -= gang.gpus
        return lambda: self.charge(gang=gang, pool=pool)

    def never(self, *, gang: Gang, queue: Queue, pool: str) -> Refusal | None:
        """The refusal of a gang that the whole nominal quota could not hold."""
        nominal = queue.nominal.get(pool, 0)
        if gang.gpus <= nominal:
            return None
        if not nominal:
            return _no_quota(queue=queue, pool=pool, gang=gang)
        return Refusal(
            reason=BlockReason.EXCEEDS_QUOTA,
            message=f"needs {counted(gang.gpus, 'GPU')}; queue {queue.name} has a nominal quota of"
            f" {nominal} in pool {pool}: ask for less or raise the quota",
            needed=gang.gpus,
            available=nominal,
        )

    def exhausted(self, *, gang: Gang, queue: Queue, pool: str) -> Refusal | None:
        """The refusal of a gang that has to wait for other jobs of its queue."""
        nominal = queue.nominal.get(pool, 0)
        usage = self.usage(queue=queue.name, pool=pool)
        if not gang.gpus or usage + gang.gpus <= nominal:
            return None
        question = (queue.name, pool, usage, gang.gpus)
        if question not in self._told:
            self._told[question] = self._exhausted(gang=gang, queue=queue, pool=pool)
        return self._told[question]

    def _exhausted(self, *, gang: Gang, queue: Queue, pool: str) -> Refusal:
        nominal = queue.nominal.get(pool, 0)
        left = max(0, nominal - self.usage(queue=queue.name, pool=pool))

        def fits() -> bool:
            return self.usage(queue=queue.name, pool=pool) + gang.gpus <= nominal

        jobs = sorted(
            self._jobs[queue.name, pool].values(), key=lambda g: (g.priority, -g.gpus, g.uid)
        )
        blockers = necessary(
            leavers=[job for job in jobs if job.gpus],
            leave=lambda job: self.credit(gang=job, pool=pool),
            fits=fits,
        )
        held = named([f"{job.key} ({job.gpus})" for job in blockers])
        return Refusal(
            reason=BlockReason.QUOTA_EXHAUSTED,
            message=f"queue {queue.name} has {left} of {nominal} nominal GPUs free in pool {pool};"
            f" needs {gang.gpus}; held by {held}",
            blockers=tuple(job.key for job in blockers),
            needed=gang.gpus,
            available=left,
        )


def queue_not_found(gang: Gang) -> Refusal:
    """The refusal of a gang whose queue is not there."""
    return Refusal(
        reason=BlockReason.QUEUE_NOT_FOUND,
        message=f"queue {gang.queue} does not exist: create that TrainingQueue or name another",
    )


def entry_refusal(*, gang: Gang, queue: Queue) -> Refusal | None:
    """Why this gang may not use this queue at all, whatever is free."""
    if queue.namespaces is not None and gang.namespace not in queue.namespaces:
        return Refusal(
            reason=BlockReason.NAMESPACE_NOT_ALLOWED,
            message=f"queue {queue.name} is not open to namespace {gang.namespace};"
            f" it is open to {named(sorted(queue.namespaces)) or 'none'}",
        )
    if queue.max_priority is not None and gang.priority > queue.max_priority:
        return Refusal(
            reason=BlockReason.PRIORITY_TOO_HIGH,
            message=f"priority {gang.priority} is above {queue.max_priority}, the highest that"
            f" queue {queue.name} allows: choose a lower priority class",
        )
    return None


def open_pools(*, gang: Gang, queue: Queue, pools: Iterable[Pool]) -> list[str] | Refusal:
    """Names of the pools that the gang may be placed in, in the order of trying, or why none."""
    existing = {pool.name for pool in pools}
    if gang.pool is not None and gang.pool not in existing:
        return Refusal(
            reason=BlockReason.POOL_NOT_FOUND,
            message=f"pool {gang.pool} does not exist; pools: {named(sorted(existing)) or 'none'}",
        )
    wanted = existing if gang.pool is None else {gang.pool}
    return sorted(wanted & set(queue.nominal)) or _no_quota(queue=queue, pool=gang.pool, gang=gang)


def _no_quota(*, queue: Queue, pool: str | None, gang: Gang) -> Refusal:
    listed = named(sorted(name for name, gpus in queue.nominal.items() if gpus)) or "no pool"
    where = f"pool {pool}" if pool else "any existing pool"
    return Refusal(
        reason=BlockReason.NO_QUOTA_IN_POOL,
        message=f"queue {queue.name} has no quota in {where}; it has quota in {listed}",
        needed=gang.gpus,
    )
