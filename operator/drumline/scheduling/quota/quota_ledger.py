"""Whether the quota on a gang's way up the tree has room for it, and its user's cap.

A queue that stands alone never gets more GPUs of a pool than its nominal quota there. In a cohort
it may use what the others leave of theirs (`cohorts`), and the cohort as a whole never gets more
than its members' quotas together (I1). No user gets more of a queue than its limit for each
(`user_limits`). Where a quota was lowered under running jobs, nothing more is admitted until usage
is below it again.

Every question is O(depth of the tree); only the words of a rejection look at who holds what
(`quota_rejections`), once for equal questions.
"""

from __future__ import annotations

from dataclasses import dataclass

from drumline.scheduling.decisions import Remedy
from drumline.scheduling.model import (
    Gang,
    Ordering,
    Policy,
    PreemptionRule,
    Queue,
    Reclaim,
    Snapshot,
)
from drumline.scheduling.quota.cohorts import CohortQuota, QueueTree
from drumline.scheduling.quota.fair_sharing import FairShares, QueueHistory, past_of
from drumline.scheduling.quota.preemption_policy import FairShareWeights, PreemptionClaim
from drumline.scheduling.quota.quota_rejections import (
    Shortage,
    can_never,
    has_to_wait,
    raise_quota,
)
from drumline.scheduling.quota.usage import GangUsage, UsageByQueue
from drumline.scheduling.quota.user_limits import UserLimits, user_limits
from drumline.scheduling.rejections import Rejection
from drumline.scheduling.undo import Undo


@dataclass(slots=True, kw_only=True)
class PoolAccount:
    """What is promised of one pool."""

    cohorts: CohortQuota
    user_limits: UserLimits
    usage: UsageByQueue

    def copy(self) -> PoolAccount:
        """The same entries, to be written on separately."""
        return PoolAccount(
            cohorts=self.cohorts.copy(),
            user_limits=self.user_limits.copy(),
            usage=self.usage.copy(),
        )

    def add(self, *, leaf: int, user: str, gpus: int) -> None:
        """Count GPUs for a queue and a user."""
        self.cohorts.add(leaf=leaf, gpus=gpus)
        self.user_limits.add(leaf=leaf, user=user, gpus=gpus)


class QuotaLedger:
    """GPUs by queue, user and pool: what is promised to whom in one view of the cluster.

    Args:
        tree: the queues.
        past: what queues have had, where that counts.
        shares: where it is told what queues hold of everything, if anybody asks.
    """

    def __init__(
        self, tree: QueueTree, *, past: QueueHistory | None = None, shares: FairShares | None = None
    ) -> None:
        self.tree = tree
        self.past = past
        self.shares = shares
        self.version = 0
        """How often something was written down: as long as it is the same, so are all answers."""
        self._accounts: dict[str, PoolAccount] = {}
        self._promised: dict[tuple[str, str], int] = {}
        """By uid and pool: the sizes that are kept for gangs."""
        self._scales: dict[str, FairShareWeights] = {}
        self._rejections: dict[tuple[object, ...], Rejection] = {}
        """By the figures that a rejection depends on: equal questions, equal answers."""
        self._shares_rejections = False
        """Whether another book with the same entries has these answers too."""

    def copy(self) -> QuotaLedger:
        """A book with the same entries that can be written on separately, without the shares."""
        twin = QuotaLedger(self.tree, past=self.past)
        twin._accounts = {pool: account.copy() for pool, account in self._accounts.items()}
        # As long as neither is written on, what is true of one is true of the other.
        twin._rejections, twin._shares_rejections = self._rejections, True
        self._shares_rejections = True
        return twin

    def for_cycle(self, *, snapshot: Snapshot, policy: Policy) -> QuotaLedger:
        """A book with the same entries for one cycle, beside what the queues have had by then."""
        twin = self.copy()
        if self.past is not None:
            twin.past = past_of(snapshot=snapshot, policy=policy, tree=self.tree)
            twin.shares = self.shares.copy(twin.past) if self.shares is not None else None
        return twin

    def account(self, pool: str) -> PoolAccount:
        """All that is written down about a pool."""
        if pool not in self._accounts:
            self._accounts[pool] = PoolAccount(
                cohorts=CohortQuota(tree=self.tree, pool=pool),
                user_limits=user_limits(tree=self.tree, pool=pool),
                usage=UsageByQueue(),
            )
        return self._accounts[pool]

    def cohorts(self, pool: str) -> CohortQuota:
        """The accounts of the queues in a pool."""
        return self.account(pool).cohorts

    def usage(self, pool: str) -> UsageByQueue:
        """Who holds what of a pool."""
        return self.account(pool).usage

    def hold(self, *, gang: Gang, pool: str, size: int) -> Undo:
        """Let a gang hold so many main pods and its roles, whatever it held there before."""
        account, leaf = self.account(pool), self.tree.leaf_of[gang.queue]
        before = account.usage.of(leaf=leaf, uid=gang.uid)
        self._write(pool=pool, leaf=leaf, gang=gang, size=size)
        if before is None:
            return lambda: self._write(pool=pool, leaf=leaf, gang=gang, size=None)
        return lambda: self._write(pool=pool, leaf=leaf, gang=before.gang, size=before.size)

    def credit(self, *, gang: Gang, pool: str) -> Undo:
        """Imagine the gang gone."""
        leaf = self.tree.leaf_of[gang.queue]
        held = self.account(pool).usage.of(leaf=leaf, uid=gang.uid)
        if held is None:
            raise KeyError(f"{gang.key} holds nothing of pool {pool}")
        self._write(pool=pool, leaf=leaf, gang=held.gang, size=None)
        return lambda: self._write(pool=pool, leaf=leaf, gang=held.gang, size=held.size)

    def promise(self, *, gang: Gang, pool: str, size: int | None) -> None:
        """Count what is kept for a gang as its queue's share (None: no longer), not as held.

        For one that runs, and will only move there, its share stays the same.
        """
        leaf = self.tree.leaf_of[gang.queue]
        moves = any(
            account.usage.of(leaf=leaf, uid=gang.uid) is not None
            for account in self._accounts.values()
        )
        if self.shares is not None and not moves:
            kept = self._promised.pop((gang.uid, pool), None)
            self.shares.change(leaf=leaf, pool=pool, gang=gang, before=kept, after=size)
            if size is not None:
                self._promised[gang.uid, pool] = size

    def needs(self, *, gang: Gang, pool: str, size: int) -> int:
        """GPUs that a gang needs beside what it holds there, to hold so many main pods."""
        leaf = self.tree.leaf_of[gang.queue]
        held = self.account(pool).usage.of(leaf=leaf, uid=gang.uid)
        return gang.gpus_at(size) - (held.gpus if held else 0)

    def has_room(self, *, gang: Gang, pool: str, size: int) -> bool:
        """Whether queue and user may hold the gang with so many main pods."""
        gpus = self.needs(gang=gang, pool=pool, size=size)
        account, leaf = self.account(pool), self.tree.leaf_of[gang.queue]
        return gpus <= 0 or (
            account.cohorts.room(leaf) >= gpus
            and account.user_limits.room(leaf=leaf, user=gang.user) >= gpus
        )

    def never(self, *, gang: Gang, pool: str, size: int) -> Rejection | None:
        """The rejection of a gang that not even an idle cohort could hold."""
        return can_never(self._shortage(gang=gang, pool=pool, gpus=gang.gpus_at(size)))

    def exhausted(self, *, gang: Gang, pool: str, size: int) -> Rejection | None:
        """The rejection of a gang that has to wait for other jobs of its queue, user or cohort."""
        if self.has_room(gang=gang, pool=pool, size=size):
            return None
        gpus = self.needs(gang=gang, pool=pool, size=size)
        asked = self._shortage(gang=gang, pool=pool, gpus=gpus)
        question = asked.question
        if question not in self._rejections:
            self._rejections[question] = has_to_wait(asked)
        return self._rejections[question]

    def claim(self, *, gang: Gang, pool: str, size: int, rule: PreemptionRule) -> PreemptionClaim:
        """A gang's claim to so many main pods, against those who hold the quota."""
        account, leaf = self.account(pool), self.tree.leaf_of[gang.queue]
        fair = rule.reclaim is Reclaim.FAIR_SHARE
        return PreemptionClaim(
            cohorts=account.cohorts,
            leaf=leaf,
            gpus=self.needs(gang=gang, pool=pool, size=size),
            user=gang.user,
            user_room=account.user_limits.room(leaf=leaf, user=gang.user),
            scales=self._scales_of(pool) if fair else None,
        )

    def _scales_of(self, pool: str) -> FairShareWeights:
        if pool not in self._scales:
            self._scales[pool] = FairShareWeights(
                weights=[branch.weight for branch in self.tree.branches],
                past=self.past.in_gpus(pool) if self.past else [0.0] * len(self.tree.branches),
            )
        return self._scales[pool]

    def raise_for(self, *, gang: Gang, pool: str) -> Remedy | None:
        """The quota that would let a gang start in a pool, where nothing else is in its way."""
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
        """Let a gang hold a size, or nothing."""
        self.version += 1
        if self._shares_rejections:
            self._rejections, self._shares_rejections = {}, False
        account = self.account(pool)
        before = account.usage.of(leaf=leaf, uid=gang.uid)
        gpus = 0 if size is None else gang.gpus_at(size)
        held = before.gpus if before else 0
        if gpus != held:
            account.add(leaf=leaf, user=gang.user, gpus=gpus - held)
        if self.shares is not None:
            had = before.size if before else None
            self.shares.change(leaf=leaf, pool=pool, gang=gang, before=had, after=size)
        if size is None:
            account.usage.drop(leaf=leaf, uid=gang.uid)
        else:
            account.usage.put(GangUsage(gang=gang, leaf=leaf, size=size, gpus=gpus))


def ledger_of(*, snapshot: Snapshot, policy: Policy) -> QuotaLedger:
    """An empty book for a snapshot's queues, those that are gone but have jobs included."""
    known = {queue.name for queue in snapshot.queues}
    gone = sorted({held.gang.queue for held in snapshot.admitted} - known)
    tree = QueueTree([*snapshot.queues, *(Queue(name=name, nominal={}) for name in gone)])
    in_turns = policy.order is Ordering.FAIR_SHARE
    if not in_turns and not any(
        queue.preemption.reclaim is Reclaim.FAIR_SHARE for queue in snapshot.queues
    ):
        return QuotaLedger(tree)
    past = past_of(snapshot=snapshot, policy=policy, tree=tree)
    return QuotaLedger(
        tree, past=past, shares=FairShares(tree=tree, past=past) if in_turns else None
    )
