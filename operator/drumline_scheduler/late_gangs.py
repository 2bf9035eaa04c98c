"""Put off the waiting gangs for which the time of a cycle does not suffice (`work`).

Units are estimates (`queueing.deferral`), so searches may take longer. Then gangs take turns. Some
are tried whatever the time: those that were put off longest, some of namespaces of which few were
put off, and the first ones of other namespaces. Up to half of the time is kept for more of those
that were put off longest. So jobs of a crowded namespace delay no others for long, and each gang
has its turn. A quarter of the time later, only two of these are tried as a whole: the one put off
longest, and one of a namespace of which few were put off. For others whose search costs least,
places are searched, but no victims.

Under the strict rule no gang passes one that was put off. Gangs that were tried before hold back
only what they wait for. So they are not put off there, but costly ones take turns when the cycle is
overdue. The first one of the others is tried whatever the time, so each is known after some cycles.

Example: gangs a to e of one namespace wait, and each cycle is a little late. The first cycle tries
a. The second one tries b, c and d. The third one tries e and a.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from drumline_scheduler.cycle_session import CycleSession
from drumline_scheduler.faults import Stage
from drumline_scheduler.model import Gang, WaitingRule
from drumline_scheduler.queueing.deferral import COSTLY, Deferral
from drumline_scheduler.quota.unmet_demand import UnmetDemand
from drumline_scheduler.rejections import Rejection

_MOST_EXEMPT: Final = 6
"""Gangs that a cycle tries whatever the time."""
_LONGEST: Final = 3
"""Number of these that were put off longest. The searches of all but the first are ordinary."""
_ALWAYS: Final = 2
"""Number of these that are tried even if the cycle is overdue."""
_PLAIN: Final = 1
"""Units of a search up to which any of these are tried, but no victims are searched for them."""
_HEAD: Final = 16
"""Gangs put off longest for which some of the time is kept."""
_KEPT: Final = 0.5
"""Share of the time that is kept for that many gangs, and less for fewer."""
_FEW: Final = 2
"""Gangs put off in a namespace up to which they come first."""
_MOST_STARTS: Final = 5
"""Numbers of started gangs at which a gang that is tried whatever the time is asked again. Then it
may be put off as well."""


class LateGangs:
    """The gangs of a cycle that are put off.

    Args:
        session: the cycle.
        pools_of: returns the pools that a gang may use; none if its queue does not admit it.
    """

    def __init__(self, session: CycleSession, *, pools_of: Callable[[Gang], Sequence[str]]) -> None:
        self._session = session
        self._pools_of = pools_of
        self._is_strict = session.policy.waiting is WaitingRule.STRICT
        self._always = set[str]()
        """Uids of the gangs that are tried even if the cycle is overdue."""
        self._exempt = set[str]() if self._is_strict else self._longest_put_off()
        """Uids of the gangs that are tried as a whole, whatever the time."""
        self._begun = {session.pending.gang(uid).namespace for uid in self._exempt}
        """Namespaces of which a gang had its turn."""
        waiting = [uid for uid in session.put_off if uid in session.pending]
        self._first = waiting[0] if waiting else ""
        """Uid of the gang that was put off longest."""
        self._head = frozenset[str]() if self._is_strict else frozenset(waiting[:_HEAD])
        """Uids of the gangs that were put off longest."""
        self._unasked = set(self._head)
        """The ones whose turn has not come."""
        self._put_off: list[str] = []
        self._asked_again: Counter[str] = Counter()
        """Times that a gang has yielded to another one, by uid."""
        self._starts = 0
        """Gangs that have started or preempt others."""
        self._starts_at: dict[str, set[int]] = defaultdict(set)
        """Numbers of these at which a gang that yields was asked again, by uid."""

    @property
    def put_off(self) -> tuple[str, ...]:
        """Uids of the gangs that were put off, one of each group, the longest put off first."""
        turn = {uid: index for index, uid in enumerate(self._session.put_off)}
        return tuple(sorted(self._put_off, key=lambda uid: turn.get(uid, len(turn))))

    def late(self, gangs: Sequence[Gang], *, cost: int, stage: Stage) -> Rejection | None:
        """Return the answer to a gang, or the gangs of a group, if they are put off.

        Args:
            gangs: a gang, or those of a group.
            cost: units of a search for all of them.
            stage: what the time is asked for.
        """
        session, uid = self._session, gangs[0].uid
        if session.try_budget is None:
            return None
        place = f"{stage} {uid}"
        if self._is_strict and all(gang.uid in session.known for gang in gangs):
            if cost <= COSTLY or uid == self._first or not session.is_overdue(place):
                return None
            return self._wait(gangs)
        self._note_turn(uid, namespace=gangs[0].namespace, cost=cost)
        is_plain = stage is Stage.ADMIT and cost <= _PLAIN
        is_of_head = any(gang.uid in self._head for gang in gangs)
        self._unasked.difference_update(gang.uid for gang in gangs)
        if any(gang.uid in self._exempt for gang in gangs):
            is_always = is_plain or any(gang.uid in self._always for gang in gangs)
            is_late = not is_always and session.is_overdue(place)
        elif is_plain and is_of_head:
            is_late = session.is_overdue(place)
        else:
            is_late = (not is_of_head and self._gives_way(place)) or session.is_late(place)
        return self._wait(gangs) if is_late else None

    def _gives_way(self, place: str) -> bool:
        """Return whether the rest of the time is kept for gangs that were put off longest."""
        kept = _KEPT * len(self._unasked) / _HEAD
        return kept > 0.0 and self._session.is_nearly_over(place, kept=kept)

    def _wait(self, gangs: Sequence[Gang]) -> Rejection:
        """Put off a gang, or those of a group, and return the answer."""
        self._put_off.append(gangs[0].uid)
        if self._is_strict:
            demand = self._session.unmet_demand
            pools = open_pools(gangs, demand=demand, pools_of=self._pools_of)
            for gang in gangs:
                demand.hold(gang=gang, pools=pools[gang.uid])
        return Deferral.rejection(gangs[0].namespace)

    def late_again(self, uid: str, *, namespace: str) -> Rejection | None:
        """Return the answer to a gang that has yielded, if the cycle is overdue.

        A gang that is tried whatever the time is put off only after others have started. So if it
        yields in each cycle, some start in each cycle.
        """
        self._asked_again[uid] += 1
        self._starts_at[uid].add(self._starts)
        if uid in self._always and len(self._starts_at[uid]) <= _MOST_STARTS:
            return None
        if not self._session.is_overdue(f"again {uid} {self._asked_again[uid]}"):
            return None
        self._put_off.append(uid)
        return Deferral.rejection(namespace)

    def note_start(self) -> None:
        """Record that a gang starts, or that others leave for it."""
        self._starts += 1

    def _longest_put_off(self) -> set[str]:
        """Return gangs that were put off longest, and gangs of namespaces with few of them."""
        pending = self._session.pending
        line = [pending.gang(uid) for uid in self._session.put_off if uid in pending]
        waiting = Counter(gang.namespace for gang in line)
        longest = {gang.uid for gang in line[:1]}
        self._always |= longest
        longest |= {gang.uid for gang in line[1:_LONGEST] if pending.cost_of(gang) <= COSTLY}
        few = (gang for gang in line if waiting[gang.namespace] <= _FEW)
        # Of equal namespaces, the gang whose search costs least.
        for gang in sorted(few, key=lambda each: (waiting[each.namespace], pending.cost_of(each))):
            if len(longest) < _MOST_EXEMPT and pending.cost_of(gang) <= COSTLY:
                longest.add(gang.uid)
                if len(self._always) < _ALWAYS:
                    self._always.add(gang.uid)
        return longest

    def _note_turn(self, uid: str, *, namespace: str, cost: int) -> None:
        """Exempt the first gang of a namespace that has its turn, if its search is ordinary."""
        if namespace in self._begun or len(self._exempt) >= _MOST_EXEMPT:
            return
        self._begun.add(namespace)
        if not self._exempt or cost <= COSTLY:
            if not self._always:
                self._always.add(uid)
            self._exempt.add(uid)


def open_pools(
    gangs: Sequence[Gang], *, demand: UnmetDemand, pools_of: Callable[[Gang], Sequence[str]]
) -> dict[str, list[str]]:
    """Return the pools of each gang in which it is behind no other one, by uid."""
    behind = demand.is_behind
    return {
        gang.uid: [pool for pool in pools_of(gang) if not behind(gang=gang, pool=pool)]
        for gang in gangs
    }
