"""Whether a gang may use its queue, and whether the quota on its way up the tree has room for it.

A queue that stands alone never gets more GPUs of a pool than its nominal quota there. In a cohort
it may use what the others leave of theirs (`cohorts`), and the cohort as a whole never gets more
than its members' quotas together (I1). Where a quota was lowered under running jobs, nothing more
is admitted until usage is below it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from drumline.scheduling.cohorts import Balance, QueueTree
from drumline.scheduling.decisions import BlockReason
from drumline.scheduling.model import Gang, Pool, Queue
from drumline.scheduling.refusals import Refusal, counted, named, necessary
from drumline.scheduling.view import Undo


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a gang holds of its quota."""

    gang: Gang
    leaf: int
    gpus: int


class QuotaBook:
    """GPUs by queue and pool: what is promised to whom in one picture of the cluster."""

    def __init__(self, tree: QueueTree) -> None:
        self.tree = tree
        self._balances: dict[str, Balance] = {}
        self._holdings: dict[tuple[int, str], dict[str, Holding]] = {}
        """By root of the tree and pool, then uid."""
        self._told: dict[tuple[int, str, int, int, int], Refusal] = {}
        """By leaf, pool, its usage, its root's and GPUs needed: equal questions, equal answers."""

    def copy(self) -> QuotaBook:
        """A book with the same entries that can be written on separately."""
        twin = QuotaBook(self.tree)
        for (_, pool), holdings in self._holdings.items():
            for held in holdings.values():
                twin.charge(gang=held.gang, pool=pool, gpus=held.gpus)
        return twin

    def balance(self, pool: str) -> Balance:
        """The accounts of a pool."""
        if pool not in self._balances:
            self._balances[pool] = Balance(tree=self.tree, pool=pool)
        return self._balances[pool]

    def charge(self, *, gang: Gang, pool: str, gpus: int) -> None:
        """Count a gang in its queue, beside what it may hold there already."""
        leaf, balance = self.tree.leaf_of[gang.queue], self.balance(pool)
        balance.add(leaf=leaf, gpus=gpus)
        holdings = self._holdings.setdefault((balance.paths[leaf][-1], pool), {})
        before = holdings.get(gang.uid)
        held = gpus + (before.gpus if before else 0)
        holdings[gang.uid] = Holding(gang=gang, leaf=leaf, gpus=held)

    def credit(self, *, gang: Gang, pool: str) -> Undo:
        """Imagine the gang gone."""
        leaf, balance = self.tree.leaf_of[gang.queue], self.balance(pool)
        holdings = self._holdings[balance.paths[leaf][-1], pool]
        held = holdings.pop(gang.uid)
        balance.add(leaf=leaf, gpus=-held.gpus)
        return lambda: self.charge(gang=gang, pool=pool, gpus=held.gpus)

    def never(self, *, queue: Queue, pool: str, gpus: int) -> Refusal | None:
        """The refusal of a gang that not even an idle cohort could hold."""
        leaf = self.tree.leaf_of[queue.name]
        most = self.balance(pool).most(leaf)
        if gpus <= most:
            return None
        if not most:
            return _no_quota(queue=queue, pool=pool, gpus=gpus)
        nominal = queue.nominal.get(pool, 0)
        borrowed = f" and can borrow {most - nominal}" if most > nominal else ""
        return Refusal(
            reason=BlockReason.EXCEEDS_QUOTA,
            message=f"needs {counted(gpus, 'GPU')}; queue {queue.name} has a nominal quota of"
            f" {nominal} in pool {pool}{borrowed}: ask for less or raise the quota",
            needed=gpus,
            available=most,
        )

    def has_room(self, *, queue: Queue, pool: str, gpus: int) -> bool:
        """Whether the queue may take that many more GPUs."""
        return not gpus or self.balance(pool).room(self.tree.leaf_of[queue.name]) >= gpus

    def exhausted(self, *, queue: Queue, pool: str, gpus: int) -> Refusal | None:
        """The refusal of a gang that has to wait for other jobs of its queue or cohort."""
        leaf, balance = self.tree.leaf_of[queue.name], self.balance(pool)
        if self.has_room(queue=queue, pool=pool, gpus=gpus):
            return None
        root = balance.paths[leaf][-1]
        question = (leaf, pool, balance.usage[leaf], balance.usage[root], gpus)
        if question not in self._told:
            self._told[question] = self._exhausted(queue=queue, pool=pool, gpus=gpus)
        return self._told[question]

    def _exhausted(self, *, queue: Queue, pool: str, gpus: int) -> Refusal:
        leaf, balance = self.tree.leaf_of[queue.name], self.balance(pool)
        left = max(0, balance.room(leaf))
        root = balance.paths[leaf][-1]
        text = _room_text(queue=queue, pool=pool, left=left, balance=balance, leaf=leaf)
        if leaf != root:
            free = max(0, balance.quota[root] - balance.usage[root])
            name = self.tree.branches[root].name
            text += f" (cohort {name}: {free} of {balance.quota[root]} free)"
        holdings = sorted(
            self._holdings.get((root, pool), {}).values(),
            key=lambda h: (h.leaf != leaf, h.gang.priority, -h.gpus, h.gang.uid),
        )
        blockers = necessary(
            leavers=[held for held in holdings if held.gpus],
            leave=lambda held: self.credit(gang=held.gang, pool=pool),
            fits=lambda: balance.room(leaf) >= gpus,
        )
        held_by = named([f"{held.gang.key} ({held.gpus})" for held in blockers])
        return Refusal(
            reason=BlockReason.QUOTA_EXHAUSTED,
            message=f"{text}; needs {gpus}; held by {held_by}",
            blockers=tuple(held.gang.key for held in blockers),
            needed=gpus,
            available=left,
        )


def _room_text(*, queue: Queue, pool: str, left: int, balance: Balance, leaf: int) -> str:
    nominal = queue.nominal.get(pool, 0)
    if len(balance.paths[leaf]) == 1:
        return f"queue {queue.name} has {left} of {nominal} nominal GPUs free in pool {pool}"
    used = balance.usage[leaf]
    return (
        f"queue {queue.name} holds {used} GPUs of pool {pool}, nominal {nominal},"
        f" and may take {left} more"
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
    pools_open = sorted(wanted & set(queue.nominal))
    return pools_open or _no_quota(queue=queue, pool=gang.pool, gpus=gang.gpus)


def _no_quota(*, queue: Queue, pool: str | None, gpus: int) -> Refusal:
    listed = named(sorted(name for name, gpus in queue.nominal.items() if gpus)) or "no pool"
    where = f"pool {pool}" if pool else "any existing pool"
    return Refusal(
        reason=BlockReason.NO_QUOTA_IN_POOL,
        message=f"queue {queue.name} has no quota in {where}; it has quota in {listed}",
        needed=gpus,
    )
