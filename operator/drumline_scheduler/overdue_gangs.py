"""Count a gang that should have left a while ago as one that stays. Pure: no I/O, no clock.

An evicted gang has a deadline (`Admitted.leaves_by`). If it still holds its slots
`Policy.overdue_seconds` later, something keeps it from leaving. From then on no gang waits for it.
The projected view keeps it, nothing is nominated on its slots, and a move to other slots is
cancelled. Its queue pays for it, and its nodes stay full. No phase of the cycle evicts, repairs or
moves it.

Foreign pods that were admitted have places before a controller creates them and a scheduler binds
them. If that takes too long, their queue still pays, and their places are free for others.

Example: V must leave by t=300 for P, and P's slots are nominated. At t=420 V still runs. P then has
no slots and is decided anew. It may get free slots or other victims.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from drumline_scheduler.model import Admitted, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueGangs:
    """The snapshot without promises that have expired."""

    snapshot: Snapshot
    cancelled: tuple[str, ...] = ()
    """Uids of gangs whose move is cancelled."""
    again_at: float | None = None
    """Time at which the next promise expires."""


def without_overdue(snapshot: Snapshot, *, seconds: float, now: float) -> OverdueGangs:
    """Count gangs that should have left as staying. O(admitted).

    Args:
        snapshot: snapshot of the cycle; the same object is returned if nothing is overdue.
        seconds: time after its deadline for which a gang is still expected to leave.
        now: seconds on the clock of the deadlines.
    """
    expected = [held for held in snapshot.admitted if held.leaves_by is not None]
    overdue = {held.gang.uid for held in expected if _at(held, seconds) <= now}
    later = (_at(held, seconds) for held in expected if held.gang.uid not in overdue)
    again_at = min(later, default=None)
    if not overdue:
        return OverdueGangs(snapshot=snapshot, again_at=again_at)
    admitted = tuple(
        staying(held) if held.gang.uid in overdue else held for held in snapshot.admitted
    )
    return OverdueGangs(
        snapshot=replace(snapshot, admitted=admitted),
        cancelled=tuple(sorted(_moving(snapshot.admitted, overdue))),
        again_at=again_at,
    )


def _at(held: Admitted, seconds: float) -> float:
    assert held.leaves_by is not None  # noqa: S101 - the caller looks at no other gang
    return held.leaves_by + seconds


def _moving(admitted: Iterable[Admitted], uids: set[str]) -> Iterable[str]:
    for held in admitted:
        if held.gang.uid in uids and held.leaving and held.nominated and not held.departs:
            yield held.gang.uid


def staying(held: Admitted) -> Admitted:
    """Return the gang as one that keeps its slots, and that no phase considers."""
    never_bound = held.reserved if held.is_foreign and not held.leaving else frozenset[int]()
    return replace(
        held,
        lost=held.lost | never_bound,
        reserved=held.reserved - never_bound,
        leaving=False,
        departs=False,
        leaves_by=None,
        giving_up=frozenset(),
        displaced=frozenset(),
        nominated={},
        nominated_pool="",
        preemptible=False,
        set_aside=True,
        is_overdue=True,
    )
