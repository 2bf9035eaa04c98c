"""The law of preemption: which running gangs a waiting one may send away.

A set of victims is lawful for a gang if, with them gone and the gang in their place:

1. the gang's queue has the quota, all the way up, and its user stays within his cap;
2. no branch that the gang shares with all the reclaimed victims (where there are none: no branch
   on its way up) has borrowed more than before: nobody outside pays for it;
3. each victim is of lower priority in the gang's own queue, or it was reclaimed. Where its way up
   meets the gang's, the two sides below are compared:
   * the victim was borrowed: on its side, every branch holds more than its quota and, where
     several are taken from one branch, still did before the largest of them was taken;
   * the gang is entitled: on its side, every branch stays within its quota;
   * under `FairShare` the gang may borrow itself. It is entitled already if the topmost branch of
     its side stays within its quota. Otherwise no branch of the victims' side may fall below its
     own, and what the topmost branch there has borrowed, and has had, for its weight, stays at
     least as much as on the gang's side.

So there is no thrash (I5). By depth from the top, take what the branches there have borrowed and
have had, for their weights, largest first; then the running priorities, highest first. Every
preemption lowers this potential, compared as words in a dictionary. A reclaim does so right below
the highest place at which it meets the gang's way: the victims' side falls there, the gang's rises
at most to what the victims' still is, nobody else changes, and nothing rises above (2). Any other
preemption leaves or lowers all that is borrowed (2), and puts a higher priority in the place of
lower ones. What queues have had does not change within a cycle, and from one to the next only as
slowly as it is forgotten: two queues of equal weight send each other's jobs of g of a pool's G GPUs
away at most once in `history_seconds x g / (G x history_weight)`. Without rule 2 two queues can
push each other out for ever (a test shows it).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from drumline.scheduling.decisions import VictimReason
from drumline.scheduling.quota.cohorts import CohortQuota
from drumline.scheduling.quota.user_limits import UNLIMITED


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShareWeights:
    """How much of what is borrowed weighs how much."""

    weights: Sequence[float]
    """By branch of the queue tree."""
    past: Sequence[float]
    """By branch: what it has had, in GPUs of the pool."""

    def outweighs(self, one: int, borrowed: int, *, other: int, others: int) -> bool:
        """Whether a branch with so much borrowed has at least as much as another, for its weight.

        Exact for whole weights, where nobody has a past.
        """
        mine = (borrowed + self.past[one]) * self.weights[other]
        return mine >= (others + self.past[other]) * self.weights[one]


@dataclass(slots=True, kw_only=True)
class _ReclaimedFrom:
    """What was reclaimed of a branch off the gang's way up."""

    borrowed: int
    """What it had borrowed before."""
    sizes: list[int] = field(default_factory=list[int])
    """GPUs of the victims, ascending."""
    total: int = 0

    @property
    def too_much(self) -> bool:
        """Whether something was taken when nothing was borrowed any more."""
        return bool(self.sizes) and self.total - self.sizes[-1] >= self.borrowed

    @property
    def below_quota(self) -> bool:
        """Whether even a part was taken that was not borrowed."""
        return self.total > self.borrowed


class PreemptionClaim:
    """A gang's claim to quota while victims are picked and put back; all moves O(depth).

    Args:
        balance: the accounts of the pool; victims are taken out of them and put back.
        leaf: of the gang's queue.
        gpus: what it asks for.
        user: whose cap counts.
        user_room: what this user may still take in the queue.
        scales: where the gang reclaims by fair share; None: only if it is entitled.
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
    ) -> None:
        self._cohorts = cohorts
        self._leaf = leaf
        self._gpus = gpus
        self._user = user
        self._user_room = user_room
        self._scales = scales
        self._path = cohorts.paths[leaf]
        self._borrowed = [cohorts.borrowed(branch) for branch in self._path]
        self._above = dict(zip(self._path, range(len(self._path)), strict=True))
        self._taken: dict[int, _ReclaimedFrom] = {}
        """By branch off the gang's way up."""
        self._tops: list[dict[int, int]] = [{} for _ in self._path]
        """By place on the gang's way up: the topmost branches of the sides that join it there, and
        how many victims they have."""
        self._excesses = 0
        """From how many branches too much was taken, entitled or not."""
        self._deep = [0] * len(self._path)
        """By place on the gang's way up: how many branches that join it there fell below quota."""
        self._count = 0
        self._may: dict[tuple[int, int, int], bool] = {}
        self._borrowed_alone = self._borrowed_with_gang() if scales is not None else []
        """By branch of the gang's way up: what it would have borrowed with nobody taken."""

    def reason(self, *, leaf: int, gpus: int, lower_priority: bool) -> VictimReason | None:
        """Why a gang of some leaf may be a victim at all, if it may.

        Asked before anybody is taken. Without GPUs nothing is borrowed, and nothing is there to be
        claimed.
        """
        if leaf == self._leaf:
            return VictimReason.LOWER_PRIORITY if lower_priority else None
        usage, quota, path = self._cohorts.usage, self._cohorts.quota, self._cohorts.paths[leaf]
        if path[-1] != self._path[-1] or not gpus or not self._gpus:
            return None
        for branch in path:
            if branch in self._above:
                side = self._above[branch] - 1
                fair = self._scales is not None and self._borrowed_alone[side]
                return VictimReason.FAIR_SHARE if fair else VictimReason.BORROWED
            if usage[branch] <= quota[branch]:
                return None
        return None

    def is_entitled(self, *, freed: int) -> bool:
        """Whether the queue itself could stay within its quota, if it freed that much of its own.

        Else nothing may be reclaimed, but by fair share. Asked before anybody is taken.
        """
        usage = self._cohorts.usage[self._leaf] - freed + self._gpus
        return usage <= self._cohorts.quota[self._leaf]

    def may_reclaim(self, *, leaf: int, gpus: int, freed: int) -> bool:
        """Whether a victim elsewhere could be lawful, if the queue freed that much of its own.

        Asked before anybody is taken. Never a false no: what is freed beside its own, on its side
        of where they meet, is unknown yet, so only the gang's own leaf is looked at.
        """
        key = (leaf, gpus, freed)
        if key not in self._may:
            self._may[key] = self._may_reclaim(leaf=leaf, gpus=gpus, freed=freed)
        return self._may[key]

    def reclaimable(self, *, leaf: int, largest: int) -> int:
        """The most GPUs that may be lawful to take from another leaf, of jobs no larger than that.

        An upper bound, whatever else is taken.
        """
        off = [branch for branch in self._cohorts.paths[leaf] if branch not in self._above]
        return max(0, min(self._cohorts.borrowed(branch) for branch in off) - 1 + largest)

    def take(self, *, leaf: int, gpus: int, user: str = "") -> None:
        """Add a victim."""
        self._change(leaf=leaf, gpus=gpus, user=user, sign=1)

    def give_back(self, *, leaf: int, gpus: int, user: str = "") -> None:
        """Remove a victim again."""
        self._change(leaf=leaf, gpus=gpus, user=user, sign=-1)

    @property
    def within_reach(self) -> bool:
        """Whether nothing was reclaimed that may not be."""
        if self._excesses:
            return False
        if self._scales is None or not any(self._tops):
            return True
        return self._is_lawful(self._borrowed_with_gang())

    @property
    def has_room(self) -> bool:
        """Whether quota and cap suffice, lawfully or not."""
        if not self._gpus:
            return True
        return self._user_room >= self._gpus and self._cohorts.room(self._leaf) >= self._gpus

    @property
    def is_unconditional(self) -> bool:
        """Whether only capacity is missing: quota there is, and none of it would be borrowed."""
        return self.has_room and not any(self._borrowed_with_gang())

    def holds(self) -> bool:
        """Whether the gang may take what the victims leave."""
        if self._excesses or not self.has_room:
            return False
        if not self._count:
            return True
        borrowed = self._borrowed_with_gang()
        met = max((place for place, tops in enumerate(self._tops) if tops), default=0)
        start = met if self._scales is not None else 0
        pairs = zip(borrowed[start:], self._borrowed[start:], strict=True)
        return all(now <= before for now, before in pairs) and self._is_lawful(borrowed)

    def _is_lawful(self, borrowed: Sequence[int]) -> bool:
        """Whether the gang has the better right to all that was reclaimed so far."""
        if self._scales is None:
            met = max((place for place, tops in enumerate(self._tops) if tops), default=0)
            return not any(borrowed[:met])
        return all(
            not borrowed[place - 1]
            or (not self._deep[place] and self._is_less(place=place, borrowed=borrowed))
            for place, tops in enumerate(self._tops)
            if tops
        )

    def _is_less(self, *, place: int, borrowed: Sequence[int]) -> bool:
        """Whether the gang's side stays the smaller one of those that meet somewhere."""
        return all(
            self._outweighs(top, self._cohorts.borrowed(top), place=place, borrowed=borrowed)
            for top in self._tops[place]
        )

    def _outweighs(self, top: int, has: int, *, place: int, borrowed: Sequence[int]) -> bool:
        side = place - 1
        return self._scales is not None and self._scales.outweighs(
            top, has, other=self._path[side], others=borrowed[side]
        )

    def _may_reclaim(self, *, leaf: int, gpus: int, freed: int) -> bool:
        place = self._meeting(leaf)
        if self.is_entitled(freed=freed) or (self._scales is not None and place > 1):
            return True
        borrowed = self._borrowed_with_gang(freed=freed)
        off = [branch for branch in self._cohorts.paths[leaf] if branch not in self._above]
        left = [self._cohorts.borrowed(branch) - gpus for branch in off]
        return min(left) >= 0 and self._outweighs(off[-1], left[-1], place=place, borrowed=borrowed)

    def _meeting(self, leaf: int) -> int:
        """Where on the gang's way up another one joins it."""
        return next(
            self._above[branch] for branch in self._cohorts.paths[leaf] if branch in self._above
        )

    def _borrowed_with_gang(self, *, freed: int = 0) -> list[int]:
        """By branch of the gang's way up: what it would have borrowed."""
        self._cohorts.add(leaf=self._leaf, gpus=self._gpus - freed)
        borrowed = [self._cohorts.borrowed(branch) for branch in self._path]
        self._cohorts.add(leaf=self._leaf, gpus=freed - self._gpus)
        return borrowed

    def _change(self, *, leaf: int, gpus: int, user: str, sign: int) -> None:
        self._count += sign
        if leaf != self._leaf:
            self._reclaim(leaf=leaf, gpus=gpus, sign=sign)
        elif user == self._user:
            self._user_room += sign * gpus
        self._cohorts.add(leaf=leaf, gpus=-sign * gpus)

    def _reclaim(self, *, leaf: int, gpus: int, sign: int) -> None:
        place, off = self._meeting(leaf), 0
        for branch in self._cohorts.paths[leaf]:
            if branch in self._above:
                break
            off = branch
            if branch not in self._taken:
                borrowed = self._cohorts.borrowed(branch)
                self._taken[branch] = _ReclaimedFrom(borrowed=borrowed)
            taken = self._taken[branch]
            excess, deep = taken.too_much, taken.below_quota
            if sign > 0:
                insort(taken.sizes, gpus)
            else:
                del taken.sizes[bisect_left(taken.sizes, gpus)]
            taken.total += sign * gpus
            self._excesses += taken.too_much - excess
            self._deep[place] += taken.below_quota - deep
        tops = self._tops[place]
        tops[off] = tops.get(off, 0) + sign
        if not tops[off]:
            del tops[off]
