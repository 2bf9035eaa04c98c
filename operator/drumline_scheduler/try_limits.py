"""Limit the searches of one cycle while it runs, beside the kinds that it defers from the start.

Equal gangs are deferred as one kind (`queueing.deferral`), but each start of a costly gang takes a
search of its own. And under the strict rule only kinds are deferred that held no other gang back
when they were last tried. So the searches for gangs that were never tried are counted here. A gang
beyond the budget is not tried. It is not known then whether it would wait for others, so no later
gang passes it in this cycle. At least one of these gangs is tried in each cycle, so each is known
after some cycles. Gangs that are known to wait use no budget: they cost little.

A cycle has a time limit, too (`work`). Beyond it, no more gangs are tried, and the next cycle has a
smaller budget (`deferral.next_budget`). So gangs take turns where their searches take longer than
their units say.

Example for the strict rule: budget 4, and gangs a to f of cost 1, none of which any node can hold.
The first cycle tries a and b, and gangs behind c wait. The second cycle tries c and d as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from drumline_scheduler.cycle_session import CycleSession
from drumline_scheduler.decisions import Blocked
from drumline_scheduler.faults import Stage
from drumline_scheduler.model import Admitted, Gang, WaitingRule
from drumline_scheduler.queueing.deferral import COSTLY, NAMESPACES, Deferral
from drumline_scheduler.queueing.groups import GangGroup
from drumline_scheduler.queueing.search_costs import cost_of
from drumline_scheduler.rejections import Rejection

_MOST_EXEMPT: Final = 6
"""Gangs that a cycle tries whatever the time."""
_FEW: Final = 2
"""Gangs put off in a namespace up to which they come first."""
_OF_ALL = ""
"""Stands for all namespaces together."""
_COSTLY_OF_ALL = "/costly"
"""Stands for the costly gangs of all namespaces. No namespace has such a name."""


class TryLimits:
    """The units that the searches of a cycle have used.

    Args:
        session: the cycle.
        pools_of: returns the pools that a gang may use; none if its queue does not admit it.
    """

    def __init__(self, session: CycleSession, *, pools_of: Callable[[Gang], Sequence[str]]) -> None:
        self._session = session
        self._pools_of = pools_of
        self._is_strict = session.policy.waiting is WaitingRule.STRICT
        self._used: Counter[str] = Counter()
        """Units by namespace, and those of costly gangs of all namespaces."""
        self._searched: set[int] = set()
        """Classes of gangs for which a search was made."""
        self._yielded: set[str] = set()
        """Uids of gangs that have let another gang be asked first."""
        self._exempt = self._longest_put_off()
        """Uids of the gangs that are tried as a whole, whatever the time."""
        self._begun = {session.pending.gang(uid).namespace for uid in self._exempt}
        """Namespaces of which a gang had its turn."""
        self.put_off: list[str] = []
        """Uids of gangs for which the time did not suffice, and of one gang of each such group."""
        self.not_tried: list[str] = []
        """Uids of gangs that were not tried."""

    def note_turn(self, gang: Gang, *, cost: int | None = None) -> None:
        """Record that a gang has its turn, by a search or by the answer of an earlier cycle.

        The first gang of a namespace is tried whatever the time, if its search is ordinary. So jobs
        of a crowded namespace delay no others.

        Args:
            gang: the gang, or the first one of a group.
            cost: units of its search. None: computed here.
        """
        exempt = self._exempt
        if gang.namespace in self._begun or len(exempt) >= _MOST_EXEMPT:
            return
        self._begun.add(gang.namespace)
        if not exempt or (cost or self._session.pending.cost_of(gang)) <= COSTLY:
            exempt.add(gang.uid)

    def let_pass(self, gang: Gang) -> None:
        """Record that a gang was tried and let another gang be asked first. It is tried again."""
        self._yielded.add(gang.uid)

    def late(self, gang: Gang, *, is_early: bool) -> Rejection | None:
        """Return the answer to a gang that is not tried in this cycle; None: it is tried.

        Args:
            gang: the gang.
            is_early: whether it is asked because another gang would borrow what it is entitled to.
        """
        session, cost = self._session, self._session.pending.cost_of(gang)
        if session.try_budget is None or gang.uid in self._yielded:
            return None
        if not is_early and (out_of_time := self._out_of_time([gang], cost=cost)):
            return out_of_time
        number = session.pending.class_of(gang)
        is_again = number in self._searched
        if cost <= COSTLY and (is_again or not self._is_strict):
            return None
        if self._is_strict:
            late = None
            if is_again or gang.uid not in session.known:
                late = self._late_under_strict([gang], cost=cost)
        else:
            late = self._late_again(gang, cost=cost) if is_again else None
            self._used[gang.namespace] += 0 if late else cost
        if late is None:
            self._searched.add(number)
        return late

    def saves_remedy(self, gang: Gang, *, pool: str) -> bool:
        """Return whether no remedy is searched for, because an earlier gang holds the pool."""
        is_bounded = self._session.try_budget is not None and cost_of(gang) > COSTLY
        return is_bounded and self._session.unmet_demand.is_behind(gang=gang, pool=pool)

    def late_group(self, group: GangGroup) -> Rejection | None:
        """Return the answer to a group that is not tried in this cycle; None: it is tried."""
        known, members = self._session.known, group.members
        if self._session.try_budget is None:
            return None
        if out_of_time := self._out_of_time(members, cost=group.units * group.tries):
            return out_of_time
        if not self._is_strict:
            return None
        if all(gang.uid in known for gang in members):
            return None
        return self._late_under_strict(members, cost=group.units * group.tries)

    def _longest_put_off(self) -> set[str]:
        """Return the gang that was put off longest, and gangs of namespaces with few of them."""
        deferral, pending = self._session.rejections.deferral, self._session.pending
        left_out = frozenset(deferral.uids)
        line = [
            pending.gang(uid) for uid in deferral.before if uid in pending and uid not in left_out
        ]
        waiting = Counter(gang.namespace for gang in line)
        few = sorted(line, key=lambda gang: waiting[gang.namespace])
        longest = {gang.uid for gang in line[:1]}
        for gang in few:
            is_few = waiting[gang.namespace] <= _FEW and len(longest) < _MOST_EXEMPT
            if is_few and pending.cost_of(gang) <= COSTLY:
                longest.add(gang.uid)
        return longest

    def late_for_preemption(self, gangs: Sequence[Gang]) -> Rejection | None:
        """Return the answer to a gang, or the gangs of a group, for which no victims are searched.

        None: they are searched.
        """
        if self._session.try_budget is None:
            return None
        return self._out_of_time(gangs, stage=Stage.PREEMPT)

    def _out_of_time(
        self, gangs: Sequence[Gang], *, cost: int | None = None, stage: Stage = Stage.ADMIT
    ) -> Rejection | None:
        """Return the answer to a gang, or the gangs of a group, after the time of the cycle."""
        uid = gangs[0].uid
        self.note_turn(gangs[0], cost=cost)
        if any(gang.uid in self._exempt for gang in gangs):
            return None
        if not self._session.is_late(f"{stage} {uid}"):
            return None
        self.put_off.append(uid)
        if self._is_strict:
            for gang, pools in zip(gangs, self._open_pools(gangs).values(), strict=True):
                self._session.unmet_demand.hold(gang=gang, pools=pools)
        return Deferral.rejection(gangs[0].namespace)

    def _open_pools(self, gangs: Sequence[Gang]) -> dict[str, list[str]]:
        """Return the pools of each gang in which it is behind no other one, by uid."""
        behind = self._session.unmet_demand.is_behind
        return {
            gang.uid: [pool for pool in self._pools_of(gang) if not behind(gang=gang, pool=pool)]
            for gang in gangs
        }

    def _late_again(self, gang: Gang, *, cost: int) -> Rejection | None:
        """Return the answer to a costly gang if equal ones have used its namespace's budget."""
        budget = self._session.try_budget
        if budget is None or self._used[gang.namespace] + cost <= budget:
            return None
        self.not_tried.append(gang.uid)
        return Deferral.rejection(gang.namespace)

    def _late_under_strict(self, gangs: Sequence[Gang], *, cost: int) -> Rejection | None:
        """Return the answer to gangs beyond the budget, and hold later gangs back.

        Half of the budget is left to gangs that held none back before.

        Args:
            gangs: a gang, or those of a group.
            cost: units of a search for all of them.
        """
        demand, budget = self._session.unmet_demand, (self._session.try_budget or 0) // 2
        if demand.holds(self._session.projection.current.pools):
            return None
        pools = self._open_pools(gangs)
        # Gangs without an open pool are rejected without a search.
        if not any(pools.values()):
            return None
        namespace = gangs[0].namespace
        # One costly gang is tried whatever its cost. It leaves the budget of the others alone.
        shared = {_COSTLY_OF_ALL: budget} if cost > COSTLY else {_OF_ALL: NAMESPACES * budget}
        lines = {namespace: budget, **shared}
        if all(
            not self._used[line] or self._used[line] + cost <= most for line, most in lines.items()
        ):
            self._used.update(dict.fromkeys(lines, cost))
            return None
        for gang in gangs:
            self.not_tried.append(gang.uid)
            demand.hold(gang=gang, pools=pools[gang.uid])
        return Deferral.rejection(namespace)


class RunningTurns:
    """The running gangs that a cycle repairs and relocates within its time.

    Args:
        session: the cycle.
    """

    def __init__(self, session: CycleSession) -> None:
        self._session = session
        self._has_tried = False
        self.put_off: list[str] = []
        """Uids of the gangs that wait for the next cycle."""

    def sorted(self, line: Sequence[Admitted]) -> list[Admitted]:
        """Return the gangs with those first that earlier cycles put off longest."""
        held_of = {held.gang.uid: held for held in line}
        return [held_of[uid] for uid in self._session.rejections.deferral.in_turn(held_of)]

    def late(self, held: Admitted, stage: Stage) -> Blocked | None:
        """Return the answer to a gang that waits for the next cycle; None: it is tried.

        The first one is always tried.
        """
        uid, has_tried, self._has_tried = held.gang.uid, self._has_tried, True
        if not (has_tried and self._session.is_late(f"{stage} {uid}")):
            return None
        if uid not in self.put_off:
            self.put_off.append(uid)
        return Deferral.rejection(held.gang.namespace).of(held.gang)
