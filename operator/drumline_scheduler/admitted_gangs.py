"""Sort the running gangs by what a cycle has to do about them. Most of them need nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_

from drumline_scheduler.model import Admitted, Gang


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedGangs:
    """All running gangs."""

    admitted: tuple[Admitted, ...]
    uids: frozenset[str]
    unsettled: tuple[Admitted, ...]
    """Gangs that are broken, leave, shrink, have nominated slots, or should have left."""
    elastic: tuple[Admitted, ...]
    displaced: tuple[Admitted, ...]
    """Whole gangs with positions on nodes that are about to go."""
    with_surplus_gang: Mapping[str, Admitted] = field(default_factory=dict[str, Admitted])
    """Gangs that have a surplus gang, by uid."""

    @property
    def broken(self) -> Sequence[Admitted]:
        """Gangs to be repaired."""
        return [
            held for held in self.unsettled if held.lost and not (held.leaving or held.set_aside)
        ]

    @property
    def evicted(self) -> Sequence[Gang]:
        """Gangs that are being evicted as a whole."""
        leaving = (held for held in self.unsettled if held.leaving and not held.set_aside)
        return [held.gang for held in leaving if not (held.is_residual or held.gang.surplus_of)]

    @property
    def may_grow(self) -> Sequence[Admitted]:
        """Elastic gangs that are whole, not leaving, and on nodes that stay."""
        return [held for held in self.elastic if _is_steady(held) and self._is_beside_steady(held)]

    @property
    def may_take_surplus(self) -> Sequence[Admitted]:
        """Whole gangs on stable nodes whose surplus gang does not run yet."""
        return [
            held
            for held in self.with_surplus_gang.values()
            if held.gang.surplus is not None
            and held.gang.surplus.uid not in self.uids
            and _is_steady(held)
        ]

    def base_of(self, held: Admitted) -> Admitted | None:
        """Return the base gang of a surplus gang; None if the gang is not a surplus gang."""
        return self.with_surplus_gang.get(held.gang.surplus_of)

    def _is_beside_steady(self, held: Admitted) -> bool:
        beside = self.base_of(held)
        return beside is None or _is_steady(beside)

    def are_same(self, admitted: Sequence[Admitted]) -> bool:
        """Return whether these are the same objects."""
        # Identity is enough: values are frozen, and the cache passes unchanged objects on.
        return len(admitted) == len(self.admitted) and all(map(is_, admitted, self.admitted))


def admitted_gangs(admitted: tuple[Admitted, ...]) -> AdmittedGangs:
    """Sort the running gangs. O(admitted)."""
    return AdmittedGangs(
        admitted=admitted,
        uids=frozenset(held.gang.uid for held in admitted),
        unsettled=tuple(
            held
            for held in admitted
            if held.lost or held.leaving or held.giving_up or held.nominated or held.is_overdue
        ),
        elastic=tuple(held for held in admitted if held.gang.sizes),
        displaced=tuple(
            held
            for held in admitted
            if held.displaced and not (held.lost or held.leaving or held.giving_up)
        ),
        with_surplus_gang={
            held.gang.uid: held for held in admitted if held.gang.surplus is not None
        },
    )


def _is_steady(held: Admitted) -> bool:
    """Return whether a gang is whole, does not leave, and stays on its nodes."""
    return not (held.lost or held.leaving or held.giving_up or held.displaced or held.set_aside)
