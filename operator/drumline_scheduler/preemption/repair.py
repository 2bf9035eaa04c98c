"""Repair running gangs with lost positions, and relocate pods whose nodes are about to go.

Repairs are the first phase of a cycle, because a broken gang holds capacity without progress. Its
other pods stay where they are, and its quota is not checked again. In this order:

1. All lost positions get slots in one decision.
2. If slots are reserved for them already, the gang waits until its victims have left.
3. An elastic gang shrinks. A surplus gang that cannot shrink gives up all its pods.
4. If the policy allows it, other gangs are preempted.
5. The gang is rejected with the reason.

Step 4, and step 1 for a costly gang, may be put off when the time of the cycle's repairs is over
(`work`). Then gangs take turns: those that were put off longest come first in the next cycle.

A gang whose nodes are about to go is whole. Its pods there are placed elsewhere if there is room
for all of them, and stay otherwise. Relocation comes after the repairs and before any pending gang.
Otherwise a pending gang could take the slots, and this gang would break.
"""

from __future__ import annotations

from collections.abc import Mapping

from drumline_scheduler.decisions import Blocked, BlockReason, Placed, Preemption, Resized
from drumline_scheduler.faults import Stage
from drumline_scheduler.model import Admitted, Queue
from drumline_scheduler.placement.placer import Placer, placed
from drumline_scheduler.placement.pool_view import PoolView
from drumline_scheduler.placement.projection import Nomination, Projection
from drumline_scheduler.preemption.candidates import Candidates
from drumline_scheduler.preemption.preemptor import Preemptor, may_repair
from drumline_scheduler.preemption.repair_turns import RepairTurns
from drumline_scheduler.preemption.resizing import Resizer, give_up
from drumline_scheduler.quota.unmet_demand import UnmetDemand
from drumline_scheduler.rejections import Rejection


class GangRepair:
    """Repairs broken gangs, one after the other.

    Args:
        projection: the current and the projected view.
        placer: finds slots.
        candidates: excludes gangs that were repaired.
        preemptor: evicts victims.
        preempts: whether a repair may preempt.
        unmet_demand: records the gangs that stay broken.
        queues: queues by name.
        now: time of the cycle.
        explains: False if only repairs count, and not why a gang stays broken.
        turns: put off repairs that take too long.
    """

    def __init__(
        self,
        *,
        projection: Projection,
        placer: Placer,
        candidates: Candidates,
        preemptor: Preemptor,
        preempts: bool,
        unmet_demand: UnmetDemand,
        queues: Mapping[str, Queue],
        now: float,
        turns: RepairTurns,
        explains: bool = True,
    ) -> None:
        self._explains = explains
        self._projection = projection
        self._placer = placer
        self._resizer = Resizer(projection=projection, placer=placer)
        self._candidates = candidates
        self._preemptor = preemptor
        self._preempts = preempts
        self._unmet_demand = unmet_demand
        self._queues = queues
        self._now = now
        self.turns = turns
        self._most_free: dict[str, int] = {}
        """Most GPUs that were free on an open node when a gang was to be relocated, by pool."""
        self.released_nomination = False
        """True if a gang got other slots than its nominated ones, which are free again."""

    def repair(self, held: Admitted) -> Placed | Resized | Preemption | Blocked | None:
        """Repair a running gang that lost positions, or answer why it stays broken.

        A surplus gang that backs off stays broken and gets None, because users see only its job. So
        does a gang without slots if answers are not explained.
        """
        gang, view = held.gang, self._projection.current.pools.get(held.pool)
        # 1. Gangs that cannot be repaired now: their pool is gone, or they back off.
        if gang.surplus_of and gang.retry_at > self._now:
            return None
        if view is None and gang.surplus_of:
            return give_up(held)
        if view is None:
            return Rejection(
                reason=BlockReason.POOL_NOT_FOUND,
                message=f"pool {held.pool}, in which it was placed, no longer exists: create that"
                " GpuPool again, or suspend and resume the job to place it in another"
                " pool",
            ).of(gang)
        if gang.retry_at > self._now:
            return self._unmet_demand.back_off(gang=gang, pools=()).of(gang)
        # 2. Any slots that are free, or the nominated ones. The gang's own
        # nomination must not block them.
        nomination = self._projection.nomination(gang)
        # Users see no surplus gang. It gives up its places if it cannot be repaired.
        may_wait = nomination is None and not gang.surplus_of
        if may_wait and (late := self.turns.late(gang)) is not None:
            self._unmet_demand.want(gang=gang, pool=held.pool, reason=BlockReason.INSUFFICIENT_GPUS)
            return late.of(gang)
        if nomination is not None:
            self._projection.release(nomination)
        find = self._placer.find_whole if self._explains else self._placer.try_find
        nodes = find(gang=gang, pool=held.pool, pods=held.size, kept=held.survivors)
        if nodes is None:
            if nomination is not None:
                self._projection.nominate(nomination)
            return None
        if isinstance(nodes, Rejection):
            return self._not_repaired(held=held, rejection=nodes, nomination=nomination)
        if nomination is not None and tuple(nodes) != nomination.nodes:
            self._placer.forget()
            self.released_nomination = True
        # 3. The lost positions get the nodes. All other pods keep their nodes.
        self._candidates.exclude((gang.uid,))
        lost = tuple(sorted(held.lost))
        self._projection.take(gang=gang, pool=held.pool, nodes=nodes, positions=lost)
        node_of = dict(enumerate(held.assignment)) | dict(zip(lost, nodes, strict=True))
        return placed(gang=gang, view=view, assignment=list(node_of.values()), replaced=lost)

    def relocate(self, held: Admitted) -> Placed | None:
        """Return other slots for the displaced positions of a whole gang; None if they stay."""
        gang, view = held.gang, self._projection.current.pools.get(held.pool)
        if view is None or gang.retry_at > self._now or gang.uid in view.leaving:
            return None
        # New nodes that an autoscaler adds for it are nominated for it alone.
        nomination = self._projection.nomination(gang)
        if nomination is not None:
            self._projection.release(nomination)
        # Before an upgrade all nodes are cordoned: then no gang needs a search of its own. Free
        # capacity only shrinks from here on, so the number counts for all gangs of the cycle.
        elif held.pool not in self._most_free:
            self._most_free[held.pool] = most_free_gpus(view)
        if nomination is None and gang.per_pod.gpus > self._most_free[held.pool]:
            return None
        positions = tuple(sorted(held.displaced))
        nodes = self._placer.try_find(gang=gang, pool=held.pool, pods=held.size, kept=held.staying)
        if nodes is None or not {held.assignment[i] for i in positions}.isdisjoint(nodes):
            if nomination is not None:
                self._projection.nominate(nomination)
            return None  # no room, or a node that is open again and was not about to go after all
        if nomination is not None and tuple(nodes) != nomination.nodes:
            self._placer.forget()
            self._most_free.clear()
            self.released_nomination = True
        self._candidates.exclude((gang.uid,))
        self._projection.take(gang=gang, pool=held.pool, nodes=nodes, positions=positions)
        node_of = dict(enumerate(held.assignment)) | dict(zip(positions, nodes, strict=True))
        return placed(gang=gang, view=view, assignment=list(node_of.values()), replaced=positions)

    def _not_repaired(
        self, *, held: Admitted, rejection: Rejection, nomination: Nomination | None
    ) -> Resized | Preemption | Blocked:
        """Run steps 2 to 5 for a gang whose lost positions have no slots now."""
        gang, queue = held.gang, self._queues.get(held.gang.queue)
        if nomination is not None:
            self._projection.nominate(nomination)
            return self._preemptor.waiting(nomination)
        shrunk = self._resizer.shrink(held)
        if shrunk is not None:
            self._candidates.exclude((gang.uid,))
            return shrunk
        if gang.surplus_of:
            self._candidates.exclude((gang.uid,))
            return give_up(held)
        if (
            self._preempts
            and queue is not None
            and may_repair(gang, queue=queue, rejection=rejection)
            and not self.turns.waits(gang, Stage.PREEMPT)
        ):
            preemption = self._preemptor.repair(held=held, queue=queue, rejection=rejection)
            if preemption is not None:
                return preemption
        self._unmet_demand.want(gang=gang, pool=held.pool, reason=rejection.reason)
        return rejection.of(gang)


def most_free_gpus(view: PoolView) -> int:
    """Return the most GPUs that are free on one node that takes new pods. O(nodes)."""
    free = (
        view.free[ordinal][0]
        for ordinal, node in enumerate(view.tree.nodes)
        if node.ready
        and not node.starting
        and not (node.unschedulable or node.closed or node.distrusted or node.quarantined)
    )
    return max(free, default=0)
