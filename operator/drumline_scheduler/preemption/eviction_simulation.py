"""Eviction units, and the simulation of their eviction on the projected view.

A rigid gang is one unit. An elastic gang may be several units, in the order of their eviction: the
pods above its smallest size, size by size, then all other pods. A unit is evicted only after the
units of its gang before it, and restored only before them.

Every change is made on the projected view and undone: O(pods of the unit + depth of the tree).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add, sub
from typing import Final, Protocol

from drumline_scheduler.decisions import VictimReason
from drumline_scheduler.model import Admitted
from drumline_scheduler.placement.allocations import Allocation, Vector
from drumline_scheduler.placement.search import Search


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionUnit:
    """Pods of a running gang that may be evicted together."""

    held: Admitted
    uid: str
    """Uid of the gang."""
    allocation: Allocation
    """Capacity that its eviction frees."""
    leaf: int
    """The gang's queue, as a leaf of the queue tree."""
    gpus: int
    cost: float
    """GPU-seconds that its eviction loses."""
    seconds: float
    """Cost of a restart for each of its GPUs, or for each pod if it has no GPUs."""
    why: VictimReason
    kept: tuple[int, ...] = ()
    """Positions with which the gang continues after the eviction of this unit and those before it.
    """
    step: int = 0
    """Number of units of the gang that are evicted before it."""
    before: int = 0
    """GPUs of the units before it."""

    @property
    def amounts(self) -> Mapping[int, Vector]:
        """Resources that its eviction frees, by node ordinal."""
        return self.allocation.amounts

    @property
    def order(self) -> tuple[float, str, int]:
        """Sort key: cheapest first, then by uid."""
        return (self.cost, self.uid, self.step)

    @property
    def rate(self) -> tuple[bool, float, str, int]:
        """Sort key: cost for each GPU, units without GPUs last."""
        return (not self.gpus, self.cost / (self.gpus or 1), self.uid, self.step)


class PreemptionPolicy(Protocol):
    """The rules and quota that permit a set of victims (`quota.preemption_policy`)."""

    @property
    def within_reach(self) -> bool:
        """True if all victims so far are permitted."""
        ...

    @property
    def is_unconditional(self) -> bool:
        """True if the quota suffices without any victim."""
        ...

    def take(self, *, leaf: int, gpus: int, user: str = "", covered: bool = False) -> None:
        """Add a victim.

        Args:
            leaf: index of the victim's queue in the tree.
            gpus: the victim's GPUs, or parts in a partitioned pool.
            user: the victim's user.
            covered: whether all GPUs of the victim must be borrowed.
        """
        ...

    def give_back(self, *, leaf: int, gpus: int, user: str = "", covered: bool = False) -> None:
        """Remove a victim again.

        Args:
            leaf: index of the victim's queue in the tree.
            gpus: the victim's GPUs, or parts in a partitioned pool.
            user: the victim's user.
            covered: whether all GPUs of the victim must be borrowed.
        """
        ...

    def holds(self) -> bool:
        """Return whether the victims are permitted and the quota suffices without them."""
        ...


class _NoPolicy:
    """The policy of moves. They take no quota from any queue, so all of them are permitted."""

    within_reach = True
    is_unconditional = True

    def take(self, *, leaf: int, gpus: int, user: str = "", covered: bool = False) -> None:
        """Do nothing."""

    def give_back(self, *, leaf: int, gpus: int, user: str = "", covered: bool = False) -> None:
        """Do nothing."""

    def holds(self) -> bool:
        """Return True."""
        return True


NO_POLICY: Final = _NoPolicy()


class EvictionSimulation:
    """The units evicted so far, on the projected view.

    Args:
        search: the preemptor's search for slots.
        claim: its preemption policy and quota.
        gpus: GPUs that it needs in addition to those it holds.
    """

    def __init__(self, *, search: Search, claim: PreemptionPolicy, gpus: int) -> None:
        self.search = search
        self.claim = claim
        self.gpus = gpus
        self.evicted: dict[tuple[str, int], EvictionUnit] = {}
        self._steps: dict[str, int] = {}

    def may_evict(self, unit: EvictionUnit) -> bool:
        """Return whether a unit is the next of its gang to be evicted."""
        return self._steps.get(unit.uid, 0) == unit.step

    def may_restore(self, unit: EvictionUnit) -> bool:
        """Return whether a unit is the last evicted one of its gang."""
        return self._steps.get(unit.uid, 0) == unit.step + 1

    def evict(self, unit: EvictionUnit) -> None:
        """Evict a unit for which `may_evict` holds."""
        user, covered = unit.held.gang.user, unit.held.is_foreign
        self.evicted[unit.uid, unit.step] = unit
        self._steps[unit.uid] = unit.step + 1
        self.search.view.shift(unit.allocation, sign=1)
        # The policy counts a gang as one victim, so its earlier units are replaced by all so far.
        if unit.step:
            self.claim.give_back(leaf=unit.leaf, gpus=unit.before, user=user)
        self.claim.take(leaf=unit.leaf, gpus=unit.before + unit.gpus, user=user, covered=covered)

    def restore(self, unit: EvictionUnit) -> None:
        """Restore a unit for which `may_restore` holds."""
        user, covered = unit.held.gang.user, unit.held.is_foreign
        del self.evicted[unit.uid, unit.step]
        self._steps[unit.uid] = unit.step
        self.search.view.shift(unit.allocation, sign=-1)
        self.claim.give_back(
            leaf=unit.leaf, gpus=unit.before + unit.gpus, user=user, covered=covered
        )
        if unit.step:
            self.claim.take(leaf=unit.leaf, gpus=unit.before, user=user)

    def restore_all(self) -> None:
        """Restore all evicted units."""
        for unit in reversed(list(self.evicted.values())):
            self.restore(unit)

    def domains_with_room(self, ids: Iterable[int]) -> list[int]:
        """Return the domains among `ids` that have room for the pods."""
        return self.search.roomy(ids)

    def gain(self, unit: EvictionUnit) -> int | None:
        """Return how many more pods fit after its eviction; None if they cannot be counted."""
        return self._change(unit, add)

    def is_needed(self, unit: EvictionUnit, ids: Sequence[int]) -> bool:
        """Return whether the pods certainly do not fit once an evicted unit is restored.

        This is a quick check of its nodes only. False if it does not decide.

        Args:
            unit: an evicted unit.
            ids: domains that had room when they were last counted, unchanged since.
        """
        change = self._change(unit, sub) if len(ids) == 1 else None
        return change is not None and self.slots(ids) + change < self.search.demand.pods

    def _change(self, unit: EvictionUnit, step: Callable[[int, int], int]) -> int | None:
        """Return the change of slots when a unit is evicted (add) or restored (sub)."""
        search = self.search
        demand = search.demand
        if not self.is_plain or demand.slice_levels or demand.anchors or search.variants[-1].fixed:
            return None
        free, slots_in, is_open = search.view.free, search.shape.slots_in, search.index.counted
        return sum(
            slots_in(tuple(map(step, free[i], amount))) - slots_in(free[i])
            for i, amount in unit.amounts.items()
            if is_open[i]
        )

    def domains_with_room_without(
        self, units: Iterable[EvictionUnit], ids: Iterable[int]
    ) -> list[int]:
        """Return `domains_with_room` if all units were evicted, whatever the policy. O(pods)."""
        total: dict[int, Vector] = {}
        for unit in units:
            for ordinal, amount in unit.amounts.items():
                held = total.get(ordinal)
                total[ordinal] = tuple(map(add, held, amount)) if held else amount
        together = Allocation(gang=self.search.gang, places={}, amounts=total)
        self.search.view.shift(together, sign=1)
        domains = self.domains_with_room(ids)
        self.search.view.shift(together, sign=-1)
        return domains

    def slots(self, ids: Iterable[int]) -> int:
        """Return the most slots that any of these domains had when last counted."""
        slots = self.search.index.slots[self.search.depth]
        return max((int(slots[identity]) for identity in ids), default=0)

    @property
    def is_plain(self) -> bool:
        """True if all pods are equal. The index does not count the nodes of role pods."""
        return not self.search.demand.roles and self.search.shape.grain == 1

    def free_gpus(self, identity: int) -> int | None:
        """Return the GPUs that were free in a domain when last counted; None if not counted."""
        if not self.is_plain:
            return None
        return int(self.search.index.gpus[self.search.depth][identity])

    def is_feasible(self, ids: Iterable[int]) -> bool:
        """Return whether the policy permits the victims and the pods fit one of these domains."""
        return self.claim.holds() and bool(self.domains_with_room(ids))

    def cost(self) -> float:
        """Return the GPU-seconds that all evictions lose."""
        return sum(unit.cost for unit in sorted(self.evicted.values(), key=lambda unit: unit.order))
