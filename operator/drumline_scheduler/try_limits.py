"""Limit the searches of one cycle while it runs, beside the kinds that it defers from the start.

Equal gangs are deferred as one kind (`queueing.deferral`), but each start of a costly gang takes a
search of its own. And under the strict rule only kinds are deferred that held no other gang back
when they were last tried. So the searches for gangs that were never tried are counted here. A gang
beyond the budget is not tried. It is not known then whether it would wait for others, so no later
gang passes it in this cycle. At least one of these gangs is tried in each cycle, so each is known
after some cycles. Gangs that are known to wait use no budget: they cost little.

Example for the strict rule: budget 4, and gangs a to f of cost 1, none of which any node can hold.
The first cycle tries a and b, and gangs behind c wait. The second cycle tries c and d as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from drumline_scheduler.cycle_session import CycleSession
from drumline_scheduler.late_gangs import open_pools
from drumline_scheduler.model import Gang, WaitingRule
from drumline_scheduler.queueing.deferral import COSTLY, NAMESPACES, Deferral
from drumline_scheduler.queueing.groups import GangGroup
from drumline_scheduler.queueing.search_costs import cost_of
from drumline_scheduler.rejections import Rejection

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
        self.not_tried: list[str] = []
        """Uids of gangs that were not tried."""

    def let_pass(self, gang: Gang) -> None:
        """Record that a gang was tried and let another gang be asked first. It is tried again."""
        self._yielded.add(gang.uid)

    def has_yielded(self, gang: Gang) -> bool:
        """Return whether a gang has let another gang be asked first."""
        return gang.uid in self._yielded

    def late(self, gang: Gang) -> Rejection | None:
        """Return the answer to a gang that is not tried in this cycle; None: it is tried."""
        session, cost = self._session, self._session.pending.cost_of(gang)
        if session.try_budget is None or self.has_yielded(gang):
            return None
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
        if not self._is_strict or self._session.try_budget is None:
            return None
        if all(gang.uid in known for gang in members):
            return None
        return self._late_under_strict(members, cost=group.units * group.tries)

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
        pools = open_pools(gangs, demand=demand, pools_of=self._pools_of)
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
