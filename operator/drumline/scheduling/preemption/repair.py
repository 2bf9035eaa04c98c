"""Running gangs that lost places: replacements for all in one decision, or what else is done.

They come first in a cycle: a broken gang holds capacity that does nothing until it is whole. Its
other pods stay where they are, and quota is not asked again. Where no replacement is free, an
elastic gang shrinks; where the owner wants it so, others are sent away; else it is told why.
"""

from __future__ import annotations

from collections.abc import Mapping

from drumline.scheduling.decisions import Blocked, BlockReason, Placed, Preemption, Resized
from drumline.scheduling.model import Admitted, Queue
from drumline.scheduling.placement.placer import Placer, placed
from drumline.scheduling.placement.projection import Nomination, Projection
from drumline.scheduling.preemption.candidates import Candidates
from drumline.scheduling.preemption.elastic import Resizer
from drumline.scheduling.preemption.preemptor import Preemptor
from drumline.scheduling.quota.unmet_demand import UnmetDemand
from drumline.scheduling.rejections import Rejection


class GangRepair:
    """Repairs broken gangs, one after the other.

    Args:
        horizon: the current and the projected view.
        placer: finds the places.
        candidacy: who was given something is nobody's victim.
        preemptor: sends others away.
        preempts: whether anybody is sent away for a repair.
        backlog: hears of those that stay broken.
        queues: by name.
        now: the present moment.
    """

    def __init__(
        self,
        *,
        projection: Projection,
        placer: Placer,
        candidacy: Candidates,
        preemptor: Preemptor,
        preempts: bool,
        backlog: UnmetDemand,
        queues: Mapping[str, Queue],
        now: float,
    ) -> None:
        self._projection = projection
        self._placer = placer
        self._resizer = Resizer(projection=projection, placer=placer)
        self._candidacy = candidacy
        self._preemptor = preemptor
        self._preempts = preempts
        self._backlog = backlog
        self._queues = queues
        self._now = now
        self.gave_back = False
        """Whether somebody found other places than those that were kept for it."""

    def repair(self, held: Admitted) -> Placed | Resized | Preemption | Blocked:
        """Replacements for the lost places of an admitted gang; the others stay where they are."""
        gang, view = held.gang, self._projection.current.pools.get(held.pool)
        if view is None:
            return Rejection(
                reason=BlockReason.POOL_NOT_FOUND,
                message=f"pool {held.pool}, in which it was placed, does not exist any more",
            ).of(gang)
        if gang.retry_at > self._now:
            return self._backlog.back_off(gang=gang, pools=()).of(gang)
        kept = self._projection.nomination(gang)
        if kept is not None:
            self._projection.release(kept)
        found = self._placer.find(gang=gang, pool=held.pool, pods=held.size, kept=held.survivors)
        if isinstance(found, Rejection):
            return self._not_repaired(held=held, rejection=found, kept=kept)
        if kept is not None and tuple(found) != kept.nodes:
            self._placer.forget()
            self.gave_back = True
        self._candidacy.exclude((gang.uid,))
        lost = tuple(sorted(held.lost))
        self._projection.take(gang=gang, pool=held.pool, nodes=found, positions=lost)
        places = dict(enumerate(held.assignment)) | dict(zip(lost, found, strict=True))
        return placed(gang=gang, view=view, assignment=list(places.values()), replaced=lost)

    def _not_repaired(
        self, *, held: Admitted, rejection: Rejection, kept: Nomination | None
    ) -> Resized | Preemption | Blocked:
        """What a broken gang does whose lost places nothing can fill now."""
        gang, queue = held.gang, self._queues.get(held.gang.queue)
        if kept is not None:
            self._projection.nominate(kept)
            return self._preemptor.waiting(kept)
        shrunk = self._resizer.shrink(held)
        if shrunk is not None:
            self._candidacy.exclude((gang.uid,))
            return shrunk
        if self._preempts and queue is not None:
            preemption = self._preemptor.repair(held=held, queue=queue, rejection=rejection)
            if preemption is not None:
                return preemption
        self._backlog.want(gang=gang, pool=held.pool, reason=rejection.reason)
        return rejection.of(gang)
