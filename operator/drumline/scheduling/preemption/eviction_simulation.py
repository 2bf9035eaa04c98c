"""What running gangs may be told to give up, and the projected view while that is tried out.

A rigid gang is one part: all of it. An elastic gang may be several, in the order in which they
leave: first, size by size, the pods above its smallest size, at last all the rest. A part leaves
only after those before it and comes back only before them.

All moves are made on the projected view and undone: O(places of the part + depth of the tree).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add, sub
from typing import Final, Protocol

from drumline.scheduling.decisions import VictimReason
from drumline.scheduling.model import Admitted
from drumline.scheduling.placement.pool_view import Allocation, Vector
from drumline.scheduling.placement.search import Search


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionUnit:
    """A part of a running gang that may be sent away for the one that asks."""

    held: Admitted
    uid: str
    holder: Allocation
    """What leaves with it."""
    leaf: int
    gpus: int
    cost: float
    seconds: float
    """What each GPU of it costs that only restarts; each pod, where it has no GPUs."""
    why: VictimReason
    kept: tuple[int, ...] = ()
    """Positions with which the gang goes on without it and those before it."""
    step: int = 0
    """How many parts of the gang leave before it."""
    before: int = 0
    """GPUs of these."""

    @property
    def amounts(self) -> Mapping[int, Vector]:
        """What leaves with it, by node ordinal."""
        return self.holder.amounts

    @property
    def order(self) -> tuple[float, str, int]:
        """Cheapest first, then by uid."""
        return (self.cost, self.uid, self.step)

    @property
    def rate(self) -> tuple[bool, float, str, int]:
        """Cheapest for each GPU first; those without GPUs last."""
        return (not self.gpus, self.cost / (self.gpus or 1), self.uid, self.step)


class PreemptionPolicy(Protocol):
    """What may be taken from whom (`preemption_policy`)."""

    @property
    def within_reach(self) -> bool:
        """Whether nothing was taken that may not be."""
        ...

    @property
    def is_unconditional(self) -> bool:
        """Whether only capacity is missing."""
        ...

    def take(self, *, leaf: int, gpus: int, user: str = "") -> None:
        """Add a victim."""
        ...

    def give_back(self, *, leaf: int, gpus: int, user: str = "") -> None:
        """Remove a victim again."""
        ...

    def holds(self) -> bool:
        """Whether the gang may take what the victims leave."""
        ...


class _NoPolicy:
    """The law among those who only move: nobody loses anything to anybody."""

    within_reach = True
    is_unconditional = True

    def take(self, *, leaf: int, gpus: int, user: str = "") -> None:
        """Nothing is taken."""

    def give_back(self, *, leaf: int, gpus: int, user: str = "") -> None:
        """Nothing was taken."""

    def holds(self) -> bool:
        """Always."""
        return True


NO_POLICY: Final = _NoPolicy()


class EvictionSimulation:
    """The parts picked so far, on the projected view.

    Args:
        search: what the gang looks for.
        claim: its claim to quota.
        gpus: what it needs beside what it holds.
    """

    def __init__(self, *, search: Search, claim: PreemptionPolicy, gpus: int) -> None:
        self.search = search
        self.claim = claim
        self.gpus = gpus
        self.gone: dict[tuple[str, int], EvictionUnit] = {}
        self._steps: dict[str, int] = {}

    def may_leave(self, one: EvictionUnit) -> bool:
        """Whether a part is the next of its gang to leave."""
        return self._steps.get(one.uid, 0) == one.step

    def may_return(self, one: EvictionUnit) -> bool:
        """Whether a part is the last of its gang that left."""
        return self._steps.get(one.uid, 0) == one.step + 1

    def evict(self, one: EvictionUnit) -> None:
        """Let a part go that may leave."""
        user = one.held.gang.user
        self.gone[one.uid, one.step] = one
        self._steps[one.uid] = one.step + 1
        self.search.view.shift(one.holder, sign=1)
        if one.step:
            self.claim.give_back(leaf=one.leaf, gpus=one.before, user=user)
        self.claim.take(leaf=one.leaf, gpus=one.before + one.gpus, user=user)

    def restore(self, one: EvictionUnit) -> None:
        """Let a part come back that may return."""
        user = one.held.gang.user
        del self.gone[one.uid, one.step]
        self._steps[one.uid] = one.step
        self.search.view.shift(one.holder, sign=-1)
        self.claim.give_back(leaf=one.leaf, gpus=one.before + one.gpus, user=user)
        if one.step:
            self.claim.take(leaf=one.leaf, gpus=one.before, user=user)

    def restore_all(self) -> None:
        """Let everybody come back."""
        for one in reversed(list(self.gone.values())):
            self.restore(one)

    def roomy(self, ids: Iterable[int]) -> list[int]:
        """Those of some domains that can hold the pods."""
        return self.search.roomy(ids)

    def gain(self, one: EvictionUnit) -> int | None:
        """How many pods more have room by its leaving alone; None if that cannot be counted."""
        return self._change(one, add)

    def is_needed(self, one: EvictionUnit, ids: Sequence[int]) -> bool:
        """Whether a part that is gone cannot come back, as far as one look at its nodes tells.

        Args:
            one: the part.
            ids: domains that were roomy when they were last looked at, nothing changed since.
        """
        change = self._change(one, sub) if len(ids) == 1 else None
        return change is not None and self.slots(ids) + change < self.search.demand.pods

    def _change(self, one: EvictionUnit, step: Callable[[int, int], int]) -> int | None:
        """Pods more (fewer: negative) that have room on its nodes with it gone or back."""
        search = self.search
        demand = search.demand
        if not self.is_plain or demand.cuts or demand.anchors or search.variants[-1].fixed:
            return None
        free, slots_in, is_open = search.view.free, search.shape.slots_in, search.index.open
        return sum(
            slots_in(tuple(map(step, free[i], amount))) - slots_in(free[i])
            for i, amount in one.amounts.items()
            if is_open[i]
        )

    def roomy_without(self, parts: Iterable[EvictionUnit], ids: Iterable[int]) -> list[int]:
        """The same if all of these were gone, the law aside. O(their places)."""
        total: dict[int, Vector] = {}
        for one in parts:
            for ordinal, amount in one.amounts.items():
                held = total.get(ordinal)
                total[ordinal] = tuple(map(add, held, amount)) if held else amount
        everybody = Allocation(gang=self.search.gang, places={}, amounts=total)
        self.search.view.shift(everybody, sign=1)
        found = self.roomy(ids)
        self.search.view.shift(everybody, sign=-1)
        return found

    def slots(self, ids: Iterable[int]) -> int:
        """Pods that the roomiest of some domains had room for when it was last looked at."""
        slots = self.search.index.slots[self.search.depth]
        return max((int(slots[identity]) for identity in ids), default=0)

    @property
    def is_plain(self) -> bool:
        """Whether all pods are equal: pods of roles may use nodes that are not counted here."""
        return not self.search.demand.roles and self.search.shape.grain == 1

    def free_gpus(self, identity: int) -> int | None:
        """GPUs that were free in a domain for such a gang, likewise; None if nobody counts them."""
        if not self.is_plain:
            return None
        return int(self.search.index.gpus[self.search.depth][identity])

    def enough(self, ids: Iterable[int]) -> bool:
        """Whether the gang may and can take places in one of some domains."""
        return self.claim.holds() and bool(self.roomy(ids))

    def cost(self) -> float:
        """Of all that is gone."""
        return sum(one.cost for one in sorted(self.gone.values(), key=lambda one: one.order))
