"""The last phase of a cycle: gangs grow and running gangs move into unused capacity.

An elastic gang grows in its pool, and a gang with a surplus gang gets it started beside it. Nothing
takes capacity that a pending gang could use.
"""

from __future__ import annotations

from functools import partial

from drumline_scheduler.cycle_session import CycleSession
from drumline_scheduler.decisions import Move, Placed, Resized
from drumline_scheduler.model import Admitted, Gang
from drumline_scheduler.placement.placer import placed
from drumline_scheduler.preemption.defragmentation import Defragmenter
from drumline_scheduler.preemption.migration import Migrator
from drumline_scheduler.preemption.resizing import Resizer
from drumline_scheduler.queueing.search_costs import cost_of
from drumline_scheduler.rejections import Rejection
from drumline_scheduler.sizes import fitting


class Growth:
    """Growth and moves of running gangs."""

    def __init__(self, session: CycleSession) -> None:
        self._session = session
        self._resizer = Resizer(projection=session.projection, placer=session.placer)
        self._defragmenter = Defragmenter(
            projection=session.projection,
            candidates=session.candidates,
            budget=session.move_budget,
            cost_of=cost_of,
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
        """Give an elastic gang more slots, unless a pending gang could use them."""
        session, gang = self._session, held.gang
        if held.pool not in session.projection.current.pools or self.leaves(held):
            return None
        if not self._may_take_more(gang) or session.unmet_demand.wants(gang=gang, pool=held.pool):
            return None
        queue = session.queues[gang.queue]
        if not session.pools.accepts(gang=gang, queue=queue, pool=held.pool):
            return None
        resized = self._resizer.grow(held)
        if resized is not None:
            session.candidates.exclude((gang.uid,))
        return resized

    def start_surplus(self, surplus: Gang, *, beside: str) -> Placed | None:
        """Start a surplus gang with the most slots that any pool has for it.

        Args:
            surplus: the surplus gang.
            beside: pool of its base gang; GPUs must be of the same kind in both pools.
        """
        session, projection = self._session, self._session.projection
        if not self._may_take_more(surplus):
            return None
        pools = session.pools.select(gang=surplus, queue=session.queues[surplus.queue])
        if isinstance(pools, Rejection):
            return None
        # 1. Pools with the same kind of GPU that no pending gang needs.
        unwanted = [
            pool
            for pool in pools
            if session.pools.have_same_gpus(pool, beside)
            and not session.unmet_demand.wants(gang=surplus, pool=pool)
        ]

        def fits(size: int, *, pool: str) -> bool:
            return (
                projection.has_quota(gang=surplus, pool=pool, size=size)
                and session.placer.try_find(gang=surplus, pool=pool, pods=size) is not None
            )

        # 2. The pool with the largest size that fits. Ties go to the earlier pool.
        sizes_in = {p: fitting(surplus.legal_sizes, fits=partial(fits, pool=p)) for p in unwanted}
        pool = max(unwanted, key=lambda p: len(sizes_in[p]), default="")
        if not pool or not sizes_in[pool]:
            return None
        size = sizes_in[pool][-1]
        nodes = session.placer.try_find(gang=surplus, pool=pool, pods=size)
        if nodes is None:
            raise AssertionError(f"{surplus.key} fits with {size} pods and finds no nodes")
        # 3. Take slots and quota.
        projection.take(gang=surplus, pool=pool, nodes=nodes)
        projection.hold(gang=surplus, pool=pool, size=size)
        view = projection.current.pools[pool]
        return placed(gang=surplus, view=view, assignment=nodes)

    def leaves(self, held: Admitted) -> bool:
        """Return whether a gang is being evicted, in part or as a whole, also by this cycle."""
        view = self._session.projection.current.pools.get(held.pool)
        return view is not None and held.gang.uid in view.leaving

    def _may_take_more(self, gang: Gang) -> bool:
        session = self._session
        return (
            gang.queue in session.queues
            and gang.retry_at <= session.now
            and session.budgets.rejection(gang) is None
        )

    def moves(self) -> tuple[Move, ...]:
        """Return moves to preferred pools, then moves that free whole domains.

        There are none if the time of the cycle is over.
        """
        session = self._session
        if session.is_late("moves"):
            return ()
        back = self._migrator.moves_back() if session.policy.move_back else []
        pools = session.projection.current.pools
        quiet = [pool for pool in pools if not session.unmet_demand.is_wanted(pool)]
        return (*back, *self._defragmenter.moves(quiet))
