"""The last phase of a cycle: elastic gangs grow and running gangs move into unused capacity.

Neither takes anything that a pending gang could use.
"""

from __future__ import annotations

from drumline.scheduling.cycle_session import CycleSession
from drumline.scheduling.decisions import Move, Resized
from drumline.scheduling.model import Admitted
from drumline.scheduling.preemption.defragmentation import Defragmenter
from drumline.scheduling.preemption.migration import Migrator
from drumline.scheduling.preemption.resizing import Resizer


class Growth:
    """Growth and moves of running gangs."""

    def __init__(self, session: CycleSession) -> None:
        self._session = session
        self._resizer = Resizer(projection=session.projection, placer=session.placer)
        self._defragmenter = Defragmenter(
            projection=session.projection,
            candidates=session.candidates,
            budget=session.move_budget,
        )
        self._migrator = Migrator(
            projection=session.projection,
            placer=session.placer,
            candidates=session.candidates,
            budget=session.move_budget,
            pools=session.pools,
            queues=session.queues,
            is_wanted=lambda gang, pool: session.unmet_demand.wants(gang=gang, pool=pool),
        )

    def grow(self, held: Admitted) -> Resized | None:
        """More slots for an elastic gang, unless a pending gang could use them."""
        session, gang = self._session, held.gang
        view = session.projection.current.pools.get(held.pool)
        if gang.queue not in session.queues or view is None or gang.retry_at > session.now:
            return None
        if gang.uid in view.leaving:  # evicted, in part or as a whole, in this cycle
            return None
        if session.unmet_demand.wants(gang=gang, pool=held.pool):
            return None
        queue = session.queues[gang.queue]
        if session.budgets.rejection(gang) or not session.pools.accepts(
            gang=gang, queue=queue, pool=held.pool
        ):
            return None
        resized = self._resizer.grow(held)
        if resized is not None:
            session.candidates.exclude((gang.uid,))
        return resized

    def moves(self) -> tuple[Move, ...]:
        """Moves to preferred pools, then moves that free whole domains."""
        session = self._session
        back = self._migrator.moves_back() if session.policy.move_back else []
        pools = session.projection.current.pools
        quiet = [pool for pool in pools if not session.unmet_demand.is_wanted(pool)]
        return (*back, *self._defragmenter.moves(quiet))
