"""The quota ledger: usage of quota and user limits in one view of the cluster.

A queue without a parent never gets more GPUs of a pool than its nominal quota there. In a cohort it
may use the quota that other members leave unused (`cohorts`). The cohort as a whole never gets more
than its members' quotas together (I1). No user gets more of a queue than its limit for each user
(`user_limits`). If a quota was lowered below usage, nothing more is admitted until usage is below
it again.

Every question is O(depth of the tree). Only the message of a rejection looks at single gangs
(`quota_rejections`), once for equal questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from drumline_scheduler.decisions import Remedy
from drumline_scheduler.model import (
    Gang,
    Ordering,
    Policy,
    PreemptionRule,
    Queue,
    Reclaim,
    Snapshot,
)
from drumline_scheduler.quota.cohorts import CohortQuota, QueueTree
from drumline_scheduler.quota.fair_sharing import FairShares, QueueHistory, past_of
from drumline_scheduler.quota.preemption_policy import FairShareWeights, PreemptionClaim
from drumline_scheduler.quota.quota_rejections import (
    ExplainedShortage,
    Shortage,
    explained,
    infeasible_rejection,
    raise_quota,
    while_nodes_are_out,
)
from drumline_scheduler.quota.usage import GangUsage, UsageByQueue
from drumline_scheduler.quota.user_limits import UserLimits, user_limits
from drumline_scheduler.rejections import Rejection
from drumline_scheduler.undo import Undo

_MOST_REJECTIONS: Final = 20_000
"""Number of kept rejections above which all of them are dropped."""


@dataclass(slots=True, kw_only=True)
class PoolAccount:
    """Usage of one pool."""

    cohorts: CohortQuota
    user_limits: UserLimits
    usage: UsageByQueue

    def copy(self) -> PoolAccount:
        """Return the same usage, to be changed separately."""
        return PoolAccount(
            cohorts=self.cohorts.copy(),
            user_limits=self.user_limits.copy(),
            usage=self.usage.copy(),
        )

    def add(self, *, leaf: int, user: str, gpus: int) -> None:
        """Add GPUs to the usage of a queue and a user.

        Args:
            leaf: index of the queue in the tree.
            user: the user who pays.
            gpus: GPUs to add. A negative number removes them.
        """
        self.cohorts.add(leaf=leaf, gpus=gpus)
        self.user_limits.add(leaf=leaf, user=user, gpus=gpus)


class QuotaLedger:
    """GPUs by pool, queue and user in one view of the cluster.

    Args:
        tree: the queues.
        pools: names of the existing pools, for messages. None: not known.
        past: past use of the queues, under fair sharing.
        shares: fair shares that are kept up to date with the usage, if they decide the order.
    """

    def __init__(
        self,
        tree: QueueTree,
        *,
        pools: frozenset[str] | None = None,
        past: QueueHistory | None = None,
        shares: FairShares | None = None,
    ) -> None:
        self.tree = tree
        self._pools = pools
        self.past = past
        self.shares = shares
        self.version = 0
        """Number of changes. Answers are the same while it is the same."""
        self._accounts: dict[str, PoolAccount] = {}
        self._promised: dict[tuple[str, str], int] = {}
        """Sizes of nominated gangs, by uid and pool."""
        self._scales: dict[str, FairShareWeights] = {}
        self._lasting: dict[str, CohortQuota] = {}
        """Quotas by pool while every node is healthy."""
        self.names = True
        """True if rejections name the jobs that hold the quota. A forecast shows no rejection."""
        self._rejections: dict[tuple[object, bool], ExplainedShortage] = {}
        """The last rejection of each request, with or without names. All copies share them: each
        entry names the usage for which it holds."""

    def copy(self) -> QuotaLedger:
        """Return a ledger with the same usage, without fair shares, to be changed separately."""
        clone = QuotaLedger(self.tree, pools=self._pools, past=self.past)
        clone._lasting = self._lasting
        clone._accounts = {pool: account.copy() for pool, account in self._accounts.items()}
        clone._rejections, clone.names = self._rejections, self.names
        return clone

    def for_cycle(self, *, snapshot: Snapshot, policy: Policy) -> QuotaLedger:
        """Return a ledger with the same usage for one cycle, with the past use at its time."""
        clone = self.copy()
        if self.past is not None:
            clone.past = past_of(snapshot=snapshot, policy=policy, tree=self.tree)
            clone.shares = self.shares.copy(clone.past) if self.shares is not None else None
        return clone

    def account(self, pool: str) -> PoolAccount:
        """Return the usage of a pool."""
        if pool not in self._accounts:
            self._accounts[pool] = PoolAccount(
                cohorts=CohortQuota(tree=self.tree, pool=pool),
                user_limits=user_limits(tree=self.tree, pool=pool),
                usage=UsageByQueue(),
            )
        return self._accounts[pool]

    def cohorts(self, pool: str) -> CohortQuota:
        """Return quota and usage of the queues in a pool."""
        return self.account(pool).cohorts

    def usage(self, pool: str) -> UsageByQueue:
        """Return the usage of a pool by queue and gang."""
        return self.account(pool).usage

    def hold(self, *, gang: Gang, pool: str, size: int) -> Undo:
        """Set the usage of a gang to `size` main pods and its roles.

        Args:
            gang: the gang that is charged.
            pool: name of the pool.
            size: number of main pods.
        """
        account, leaf = self.account(pool), self.tree.leaf_of[gang.queue]
        before = account.usage.usage_of(leaf=leaf, uid=gang.uid)
        self._write(pool=pool, leaf=leaf, gang=gang, size=size)
        if before is None:
            return lambda: self._write(pool=pool, leaf=leaf, gang=gang, size=None)
        return lambda: self._write(pool=pool, leaf=leaf, gang=before.gang, size=before.size)

    def credit(self, *, gang: Gang, pool: str) -> Undo:
        """Remove the usage of a gang.

        Raises:
            KeyError: the gang holds nothing of the pool.
        """
        leaf = self.tree.leaf_of[gang.queue]
        held = self.account(pool).usage.usage_of(leaf=leaf, uid=gang.uid)
        if held is None:
            raise KeyError(f"{gang.key} holds nothing of pool {pool}")
        self._write(pool=pool, leaf=leaf, gang=held.gang, size=None)
        return lambda: self._write(pool=pool, leaf=leaf, gang=held.gang, size=held.size)

    def promise(self, *, gang: Gang, pool: str, size: int | None) -> None:
        """Count a nominated gang in its queue's fair share, not in its usage.

        A running gang that only moves already counts in its share.

        Args:
            gang: the nominated gang.
            pool: the pool of its nominated nodes.
            size: its number of main pods; None: its nomination ended.
        """
        leaf = self.tree.leaf_of[gang.queue]
        moves = any(
            account.usage.usage_of(leaf=leaf, uid=gang.uid) is not None
            for account in self._accounts.values()
        )
        if self.shares is not None and not moves:
            self.version += 1
            kept = self._promised.pop((gang.uid, pool), None)
            self.shares.change(leaf=leaf, pool=pool, gang=gang, before=kept, after=size)
            if size is not None:
                self._promised[gang.uid, pool] = size

    def needs(self, *, gang: Gang, pool: str, size: int) -> int:
        """Return the GPUs that a gang needs beside its usage there to hold `size` main pods.

        Args:
            gang: the gang that is charged.
            pool: name of the pool.
            size: number of main pods.
        """
        leaf = self.tree.leaf_of[gang.queue]
        held = self.account(pool).usage.usage_of(leaf=leaf, uid=gang.uid)
        return gang.gpus_at(size) - (held.gpus if held else 0)

    def has_room(self, *, gang: Gang, pool: str, size: int) -> bool:
        """Return whether quota and user limit allow the gang `size` main pods.

        Args:
            gang: the gang that is charged.
            pool: name of the pool.
            size: number of main pods.
        """
        gpus = self.needs(gang=gang, pool=pool, size=size)
        account, leaf = self.account(pool), self.tree.leaf_of[gang.queue]
        return gpus <= 0 or (
            account.cohorts.room(leaf) >= gpus
            and account.user_limits.room(leaf=leaf, user=gang.user) >= gpus
        )

    def infeasible(self, *, gang: Gang, pool: str, size: int) -> Rejection | None:
        """Return the rejection of a gang that exceeds an idle cohort's quota or the user limit.

        Args:
            gang: the gang that is charged.
            pool: name of the pool.
            size: number of main pods.
        """
        asked = self._shortage(gang=gang, pool=pool, gpus=gang.gpus_at(size))
        rejection = infeasible_rejection(asked, gone=self._gone(gang))
        if rejection is None or self.tree.lasting is self.tree:
            return rejection
        if pool not in self._lasting:
            self._lasting[pool] = CohortQuota(tree=self.tree.lasting, pool=pool)
        return while_nodes_are_out(asked, lasting=self._lasting[pool]) or rejection

    def _gone(self, gang: Gang) -> Sequence[str]:
        """Return the pools that do not exist, of those that the gang or its queue names."""
        if self._pools is None:
            return ()
        named = {*gang.pools, *self.tree.queues[gang.queue].nominal}
        return sorted((named if gang.pool is None else named | {gang.pool}) - self._pools)

    def searched(self, *, gang: Gang, pool: str, size: int) -> tuple[int, ...]:
        """Return the leaves whose gangs decided the last answer of `exhausted`.

        Args:
            gang: the gang that is charged.
            pool: name of the pool.
            size: number of main pods.
        """
        gpus = self.needs(gang=gang, pool=pool, size=size)
        asked = self._shortage(gang=gang, pool=pool, gpus=gpus)
        return self._rejections[(asked.request, self.names)].searched

    def exhausted(self, *, gang: Gang, pool: str, size: int) -> Rejection | None:
        """Return the rejection of a gang that waits for other jobs of its queue, user or cohort.

        Args:
            gang: the gang that is charged.
            pool: name of the pool.
            size: number of main pods.
        """
        if self.has_room(gang=gang, pool=pool, size=size):
            return None
        gpus = self.needs(gang=gang, pool=pool, size=size)
        asked = self._shortage(gang=gang, pool=pool, gpus=gpus)
        key = (asked.request, self.names)
        known = self._rejections.get(key)
        if known is None or not known.holds_for(asked):
            if len(self._rejections) >= _MOST_REJECTIONS:
                self._rejections.clear()
            known = explained(asked, before=known, names=self.names)
            self._rejections[key] = known
        return known.rejection

    def claim(self, *, gang: Gang, pool: str, size: int, rule: PreemptionRule) -> PreemptionClaim:
        """Return a gang's claim to `size` main pods, against the gangs that hold the quota.

        Args:
            gang: the gang that is charged.
            pool: name of the pool.
            size: number of main pods.
            rule: victims that the queue permits.
        """
        account, leaf = self.account(pool), self.tree.leaf_of[gang.queue]
        fair = rule.reclaim is Reclaim.FAIR_SHARE
        return PreemptionClaim(
            cohorts=account.cohorts,
            leaf=leaf,
            gpus=self.needs(gang=gang, pool=pool, size=size),
            user=gang.user,
            user_room=account.user_limits.room(leaf=leaf, user=gang.user),
            scales=self._scales_of(pool) if fair else None,
            lower_only=rule.reclaim is Reclaim.LOWER_PRIORITY,
            overrides=rule.reclaim is Reclaim.OVERRIDE,
        )

    def _scales_of(self, pool: str) -> FairShareWeights:
        if pool not in self._scales:
            self._scales[pool] = FairShareWeights(
                weights=[branch.weight for branch in self.tree.branches],
                past=self.past.in_gpus(pool) if self.past else [0.0] * len(self.tree.branches),
            )
        return self._scales[pool]

    def raise_for(self, *, gang: Gang, pool: str) -> Remedy | None:
        """Return the quota increase with which a gang could start, if only quota is missing."""
        return raise_quota(
            self._shortage(gang=gang, pool=pool, gpus=gang.gpus_at(gang.legal_sizes[0]))
        )

    def _shortage(self, *, gang: Gang, pool: str, gpus: int) -> Shortage:
        account = self.account(pool)
        return Shortage(
            queue=self.tree.queues[gang.queue],
            user=gang.user,
            pool=pool,
            gpus=gpus,
            leaf=self.tree.leaf_of[gang.queue],
            tree=self.tree,
            cohorts=account.cohorts,
            user_limits=account.user_limits,
            usage=account.usage,
        )

    def _write(self, *, pool: str, leaf: int, gang: Gang, size: int | None) -> None:
        """Set the usage of a gang; None: no usage."""
        self.version += 1
        account = self.account(pool)
        before = account.usage.usage_of(leaf=leaf, uid=gang.uid)
        gpus = 0 if size is None else gang.gpus_at(size)
        held = before.gpus if before else 0
        if gpus != held:
            account.add(leaf=leaf, user=gang.user, gpus=gpus - held)
        if self.shares is not None:
            size_before = before.size if before else None
            self.shares.change(leaf=leaf, pool=pool, gang=gang, before=size_before, after=size)
        if size is None:
            account.usage.drop(leaf=leaf, uid=gang.uid)
        else:
            account.usage.put(GangUsage(gang=gang, leaf=leaf, size=size, gpus=gpus))


def ledger_of(*, snapshot: Snapshot, policy: Policy) -> QuotaLedger:
    """Return an empty ledger for a snapshot's queues, and deleted queues that still have jobs."""
    known = {queue.name for queue in snapshot.queues}
    gone = sorted({held.gang.queue for held in snapshot.admitted} - known)
    tree = QueueTree([*snapshot.queues, *(Queue(name=name, nominal={}) for name in gone)])
    pools = frozenset(pool.name for pool in snapshot.pools)
    # Past use is needed for the order by fair share, and for reclaims by fair share.
    in_turns = policy.order is Ordering.FAIR_SHARE
    if not in_turns and not any(
        queue.preemption.reclaim is Reclaim.FAIR_SHARE for queue in snapshot.queues
    ):
        return QuotaLedger(tree, pools=pools)
    past = past_of(snapshot=snapshot, policy=policy, tree=tree)
    return QuotaLedger(
        tree, pools=pools, past=past, shares=FairShares(tree=tree, past=past) if in_turns else None
    )
