"""The preemption policy over quota: which running gangs may be evicted for a waiting gang.

A set of victims is permitted for a gang if, with the victims gone and the gang in their place:

1. the gang's queue has the quota, at every level of the tree, and its user stays within the limit;
2. no branch that the gang shares with all reclaimed victims (without any: no branch on its path to
   the root) has borrowed more than before, so that no other queue pays for the preemption;
3. each victim has a lower priority in the gang's own queue, or it is reclaimed. Where the paths of
   a reclaimed victim and of the gang meet, the two sides below are compared:
   * the victim was borrowed: on its side every branch holds more than its quota. If several
     victims are taken from one branch, it still did before the largest job of them was taken.
     Foreign pods must be borrowed entirely, so that they cost their queue none of its quota;
   * the gang is entitled: the topmost branch of its side stays within its quota. So a queue
     without a quota of its own may use the quota of a cohort above it, as in Kueue;
   * under `LowerPriority` the victim is a job of lower priority;
   * under `FairShare` a gang that is not entitled may also borrow. Then no branch of the victims'
     side may fall below its quota, and the weighted share of the topmost branch there (borrowed
     plus past use) stays at least as large as on the gang's side.

Example with one cohort: queues a and b with 4 GPUs of quota each, all 8 in use by b, as two gangs
of 4. A gang of a that asks for 4 is entitled, b borrows 4, and one gang of b is reclaimed. A second
gang of a may not reclaim the other one: b borrows nothing then (`_ReclaimedFrom.too_much`).

A gang with an `Override` may also take jobs of other queues that hold no more than their quota.
Then only rule 1 applies. `overrides` keeps those queues from taking the GPUs back meanwhile.

So preemptions alone cannot loop (I5; for the starts between them see `preemption.pauses`). By depth
from the root, take the weighted shares of the branches there, largest first; then the priorities of
the running gangs, highest first. Every preemption lowers this potential in lexicographic order. A
reclaim lowers it directly below the highest branch where it meets the gang's path: the victims'
side falls, the gang's side rises at most to the new value of the victims' side, no other branch
changes, and nothing above rises (rule 2). Any other preemption does not raise what is borrowed
(rule 2) and replaces lower priorities by a higher one. Past use does not change within a cycle and
decays slowly between cycles: two queues of equal weight preempt each other's gangs of g of a pool's
G GPUs at most once in `history_seconds x g / (G x history_weight)`. Without rule 2 two queues can
preempt each other for ever (a test shows it). All this holds for a gang of the size that it
requested. `entitlement` limits what it may borrow if it starts larger.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from drumline_scheduler.decisions import VictimReason
from drumline_scheduler.quota.cohorts import CohortQuota
from drumline_scheduler.quota.user_limits import UNLIMITED

_FLAT = 2
"""Branches of a path without a cohort between the queue and its root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShareWeights:
    """Weighted shares of the branches of a queue tree, for `Reclaim.FAIR_SHARE`."""

    weights: Sequence[float]
    """Weights by branch of the queue tree."""
    past: Sequence[float]
    """Past use by branch, in GPUs of the pool."""

    def is_at_least(self, left: int, left_borrowed: int, right: int, right_borrowed: int) -> bool:
        """Return whether the weighted share of the left branch is at least that of the right one.

        It compares products, not quotients, so it is exact for whole weights without past use.

        Args:
            left: the left branch.
            left_borrowed: GPUs that it has borrowed.
            right: the right branch.
            right_borrowed: GPUs that it has borrowed.
        """
        left_share = (left_borrowed + self.past[left]) * self.weights[right]
        return left_share >= (right_borrowed + self.past[right]) * self.weights[left]


@dataclass(slots=True, kw_only=True)
class _ReclaimedFrom:
    """The victims reclaimed from a branch that is not on the gang's path."""

    borrowed: int
    """GPUs that it had borrowed before."""
    sizes: list[int] = field(default_factory=list[int])
    """GPUs of the victims that are jobs, ascending."""
    total: int = 0
    """GPUs of all victims."""

    @property
    def too_much(self) -> bool:
        """True if a job was taken after all borrowed GPUs, or a pod beyond them."""
        if not self.sizes:
            return self.below_quota
        # The largest job counts as the last one: the branch must still have borrowed before it.
        return self.total - self.sizes[-1] >= self.borrowed

    @property
    def below_quota(self) -> bool:
        """True if the branch falls below its quota."""
        return self.total > self.borrowed


class PreemptionClaim:
    """A gang's claim to quota while victims are added and removed. Each change is O(depth).

    Args:
        cohorts: quota of the pool; victims are removed from its usage and put back.
        leaf: branch of the gang's queue.
        gpus: GPUs that the gang requests.
        user: user of the gang.
        user_room: GPUs that this user may still take in the queue.
        scales: weighted shares if the gang reclaims by fair share; None: only if it is entitled.
        lower_only: True if only jobs of lower priority are reclaimed.
        overrides: True if jobs of other queues are victims whatever their queues hold.
    """

    def __init__(
        self,
        *,
        cohorts: CohortQuota,
        leaf: int,
        gpus: int,
        user: str = "",
        user_room: int = UNLIMITED,
        scales: FairShareWeights | None = None,
        lower_only: bool = False,
        overrides: bool = False,
    ) -> None:
        self._cohorts = cohorts
        self._leaf = leaf
        self._gpus = gpus
        self._user = user
        self._user_room = user_room
        self._scales = scales
        self._lower_only = lower_only
        self.overrides = overrides
        # The state before any victim: later changes are compared with it.
        self._path = cohorts.paths[leaf]
        self._borrowed = [cohorts.borrowed(branch) for branch in self._path]
        self._above = dict(zip(self._path, range(len(self._path)), strict=True))
        self._taken: dict[int, _ReclaimedFrom] = {}
        """Reclaimed victims, by branch that is not on the gang's path."""
        self._tops: list[dict[int, int]] = [{} for _ in self._path]
        """For each index on the gang's path: the topmost branches of the victims' sides that meet
        the path there, with their numbers of victims."""
        self._excesses = 0
        """Number of branches from which more was taken than they had borrowed."""
        self._deep = [0] * len(self._path)
        """For each index on the gang's path: number of branches on the sides that meet it there and
        that fell below quota."""
        self._count = 0
        self._may: dict[tuple[int, int, int], bool] = {}
        self._borrowed_alone = self._borrowed_with_gang() if scales is not None else []
        """GPUs that each branch of the gang's path would have borrowed without victims."""

    def reason(self, *, leaf: int, gpus: int, lower_priority: bool) -> VictimReason | None:
        """Return why a gang of a leaf may be a victim, considered alone; None: it may not.

        Call it before the first victim is taken. A gang without GPUs can neither reclaim nor be
        reclaimed.

        Args:
            leaf: branch of the victim's queue.
            gpus: GPUs of the victim.
            lower_priority: whether it has a lower priority. Within the own queue, the queue's rule
                must also permit it.
        """
        if leaf == self._leaf:
            return VictimReason.LOWER_PRIORITY if lower_priority else None
        if self.overrides:
            return VictimReason.OVERRIDE if gpus and self._gpus else None
        usage, quota, path = self._cohorts.usage, self._cohorts.quota, self._cohorts.paths[leaf]
        if path[-1] != self._path[-1] or not gpus or not self._gpus:
            return None
        if self._lower_only and not lower_priority:
            return None
        # Every branch below the meeting point must hold more than its quota.
        for branch in path:
            if branch in self._above:
                side = self._above[branch] - 1
                fair = self._scales is not None and self._borrowed_alone[side]
                return VictimReason.FAIR_SHARE if fair else VictimReason.BORROWED
            if usage[branch] <= quota[branch]:
                return None
        return None

    def is_entitled(self, *, freed: int) -> bool:
        """Return whether the gang could be entitled at all if the queue freed `freed` of its GPUs.

        Otherwise nothing may be reclaimed, except by fair share. A cohort between queue and root
        may be entitled although the queue is not. Call it before the first victim is taken.
        """
        return self.overrides or len(self._path) > _FLAT or self._stays_within(freed=freed)

    def may_reclaim(self, *, leaf: int, gpus: int, freed: int) -> bool:
        """Return whether a victim of another queue may be permitted if the own queue frees GPUs.

        Call it before the first victim is taken. The answer is an upper bound. The GPUs that other
        queues on the gang's side will free are not known yet, so only the gang's own leaf is
        checked.

        Args:
            leaf: branch of the victim's queue.
            gpus: GPUs of the victim.
            freed: GPUs that the own queue frees.
        """
        if self.overrides:
            return True
        key = (leaf, gpus, freed)
        if key not in self._may:
            self._may[key] = self._may_reclaim(leaf=leaf, gpus=gpus, freed=freed)
        return self._may[key]

    def reclaimable(self, *, leaf: int, largest: int) -> int:
        """Return an upper bound of the GPUs that may be reclaimed from a leaf.

        Args:
            leaf: branch of another queue.
            largest: GPUs of its largest gang; the last victim may exceed the borrowed GPUs.
        """
        if self.overrides:
            return self._cohorts.usage[leaf]
        off = [branch for branch in self._cohorts.paths[leaf] if branch not in self._above]
        return max(0, min(self._cohorts.borrowed(branch) for branch in off) - 1 + largest)

    def take(self, *, leaf: int, gpus: int, user: str = "", covered: bool = False) -> None:
        """Add a victim.

        `covered`: all of its GPUs must have been borrowed, not only the first one.

        Args:
            leaf: index of the queue in the tree.
            gpus: GPUs, or parts in a partitioned pool.
            user: the user who pays.
            covered: whether all GPUs of the victim must be borrowed.
        """
        self._change(leaf=leaf, gpus=gpus, user=user, covered=covered, sign=1)

    def give_back(self, *, leaf: int, gpus: int, user: str = "", covered: bool = False) -> None:
        """Remove a victim again.

        Args:
            leaf: index of the queue in the tree.
            gpus: GPUs, or parts in a partitioned pool.
            user: the user who pays.
            covered: whether all GPUs of the victim must be borrowed.
        """
        self._change(leaf=leaf, gpus=gpus, user=user, covered=covered, sign=-1)

    @property
    def within_reach(self) -> bool:
        """True if every victim so far is permitted."""
        if self._excesses:
            return False
        if self._scales is None or not any(self._tops):
            return True
        return self._is_permitted(self._borrowed_with_gang())

    @property
    def has_room(self) -> bool:
        """True if quota and user limit suffice, permitted or not."""
        if not self._gpus:
            return True
        return self._user_room >= self._gpus and self._cohorts.room(self._leaf) >= self._gpus

    @property
    def is_unconditional(self) -> bool:
        """True if quota suffices and none of it would be borrowed, so only capacity is missing."""
        return self.has_room and not any(self._borrowed_with_gang())

    def holds(self) -> bool:
        """Return whether the set of victims is permitted and suffices (rules 1 to 3)."""
        if self._excesses or not self.has_room:
            return False
        if not self._count or self.overrides:
            return True
        borrowed = self._borrowed_with_gang()
        # Rule 2 covers the branches from the highest meeting point up.
        met = max((place for place, tops in enumerate(self._tops) if tops), default=0)
        pairs = zip(borrowed[met:], self._borrowed[met:], strict=True)
        return all(now <= before for now, before in pairs) and self._is_permitted(borrowed)

    def _is_permitted(self, borrowed: Sequence[int]) -> bool:
        """Return whether rule 3 holds on the gang's side.

        The side is entitled or, under `FairShare`, has the smaller weighted share.
        """
        # A side that borrows nothing is entitled. Otherwise no victim's
        # branch may fall below its quota.
        return all(
            not borrowed[place - 1]
            or (
                self._scales is not None
                and not self._deep[place]
                and self._is_less(place=place, borrowed=borrowed)
            )
            for place, tops in enumerate(self._tops)
            if tops
        )

    def _is_less(self, *, place: int, borrowed: Sequence[int]) -> bool:
        """Return whether the gang's side keeps the smallest weighted share at a meeting point."""
        return all(
            self._outweighs(top, self._cohorts.borrowed(top), place=place, borrowed=borrowed)
            for top in self._tops[place]
        )

    def _outweighs(self, top: int, has: int, *, place: int, borrowed: Sequence[int]) -> bool:
        side = place - 1
        return self._scales is not None and self._scales.is_at_least(
            top, has, self._path[side], borrowed[side]
        )

    def _may_reclaim(self, *, leaf: int, gpus: int, freed: int) -> bool:
        # Entitled gangs may reclaim. Other queues on the gang's side may free quota above the
        # first level. So this check decides only if the victim's path meets the gang's path at the
        # gang's own parent.
        place = self._meeting(leaf)
        if place > 1 or self._stays_within(freed=freed):
            return True
        if self._scales is None:
            return False
        borrowed = self._borrowed_with_gang(freed=freed)
        off = [branch for branch in self._cohorts.paths[leaf] if branch not in self._above]
        left = [self._cohorts.borrowed(branch) - gpus for branch in off]
        return min(left) >= 0 and self._outweighs(off[-1], left[-1], place=place, borrowed=borrowed)

    def _stays_within(self, *, freed: int) -> bool:
        """Return whether the queue stays within its own quota if it frees `freed` GPUs."""
        usage = self._cohorts.usage[self._leaf] - freed + self._gpus
        return usage <= self._cohorts.quota[self._leaf]

    def _meeting(self, leaf: int) -> int:
        """Return the index on the gang's path at which another leaf's path meets it."""
        return next(
            self._above[branch] for branch in self._cohorts.paths[leaf] if branch in self._above
        )

    def _borrowed_with_gang(self, *, freed: int = 0) -> list[int]:
        """Return the GPUs that each branch of the gang's path would have borrowed with the gang."""
        self._cohorts.add(leaf=self._leaf, gpus=self._gpus - freed)
        borrowed = [self._cohorts.borrowed(branch) for branch in self._path]
        self._cohorts.add(leaf=self._leaf, gpus=freed - self._gpus)
        return borrowed

    def _change(self, *, leaf: int, gpus: int, user: str, covered: bool, sign: int) -> None:
        self._count += sign
        if leaf != self._leaf and not self.overrides:
            self._reclaim(leaf=leaf, gpus=gpus, covered=covered, sign=sign)
        elif leaf == self._leaf and user == self._user:
            self._user_room += sign * gpus
        self._cohorts.add(leaf=leaf, gpus=-sign * gpus)

    def _reclaim(self, *, leaf: int, gpus: int, covered: bool, sign: int) -> None:
        place, off = self._meeting(leaf), 0
        # Update every branch of the victim's side, up to the meeting point.
        for branch in self._cohorts.paths[leaf]:
            if branch in self._above:
                break
            off = branch
            if branch not in self._taken:
                borrowed = self._cohorts.borrowed(branch)
                self._taken[branch] = _ReclaimedFrom(borrowed=borrowed)
            taken = self._taken[branch]
            excess, deep = taken.too_much, taken.below_quota
            if covered:
                pass  # only their sum counts
            elif sign > 0:
                insort(taken.sizes, gpus)
            else:
                del taken.sizes[bisect_left(taken.sizes, gpus)]
            taken.total += sign * gpus
            self._excesses += taken.too_much - excess
            self._deep[place] += taken.below_quota - deep
        # The topmost of them is compared with the gang's side. Drop it with its last victim.
        tops = self._tops[place]
        tops[off] = tops.get(off, 0) + sign
        if not tops[off]:
            del tops[off]
