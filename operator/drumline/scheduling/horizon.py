"""Now and soon: two pictures that keep what is promised to those who wait for victims.

*Soon* is the cluster without the gangs that were told to leave and without pods that are being
deleted, and with each nominated gang in the places that are kept for it. It is made when somebody
first needs it. Two rules tie it to *now*:

* Whoever starts takes its places in both, and needs quota in both.
* On each node, what would be missing soon is withheld now. So nobody can start on capacity that
  is kept, while the rest of a node stays usable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from drumline.scheduling.entry import entry_refusal
from drumline.scheduling.model import Admitted, Gang, Queue
from drumline.scheduling.picture import Picture
from drumline.scheduling.pools import wishes
from drumline.scheduling.refusals import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Nomination:
    """The places that are kept for a waiting gang."""

    gang: Gang
    pool: str
    nodes: tuple[str, ...]

    @property
    def gpus(self) -> int:
        """GPUs its queue will pay."""
        return self.gang.gpus_at(self.size)

    @property
    def size(self) -> int:
        """How many main pods it will start with."""
        return len(self.nodes) - self.gang.extras


class Horizon:
    """The two pictures of one cycle."""

    def __init__(self, *, now: Picture, admitted: Iterable[Admitted]) -> None:
        self.now = now
        self._soon: Picture | None = None
        self._leaving = [held for held in admitted if held.leaving]
        for held in self._leaving:
            if held.pool in now.views:
                now.views[held.pool].leaving.add(held.gang.uid)
        self._nominations: dict[str, Nomination] = {}

    @property
    def soon(self) -> Picture:
        """The picture once everybody has left who was told to."""
        if self._soon is None:
            self._soon = self.now.copy()
            for held in self._leaving:
                if held.pool in self._soon.views:
                    self._soon.dismiss(gang=held.gang, pool=held.pool)
            for pool, view in self._soon.views.items():
                view.vacate_terminating()
                self.now.views[pool].later = view.free
        return self._soon

    def take(
        self,
        *,
        gang: Gang,
        pool: str,
        nodes: Sequence[str],
        positions: Sequence[int] | None = None,
    ) -> None:
        """Give a gang places, beside those it may have; `positions`: which (None: the first)."""
        self.now.take(gang=gang, pool=pool, nodes=nodes, positions=positions)
        if self._soon is not None:
            self._soon.take(gang=gang, pool=pool, nodes=nodes, positions=positions)

    def hold(self, *, gang: Gang, pool: str, size: int) -> None:
        """Count a gang in its queue with so many main pods, whatever it held there before."""
        self.now.quota.hold(gang=gang, pool=pool, size=size)
        if self._soon is not None:
            self._soon.quota.hold(gang=gang, pool=pool, size=size)

    def withdraw(self, *, gang: Gang, pool: str) -> None:
        """Take back what a gang was given in this cycle."""
        self.now.dismiss(gang=gang, pool=pool)
        if self._soon is not None:
            self._soon.dismiss(gang=gang, pool=pool)

    def has_quota(self, *, gang: Gang, pool: str, size: int) -> bool:
        """Whether a gang may hold so many main pods, now and once those start who wait."""
        pictures = [self.now, self.soon] if self._nominations else [self.now]
        return all(one.quota.has_room(gang=gang, pool=pool, size=size) for one in pictures)

    def borrows(self, *, queue: Queue, pool: str, gpus: int) -> int:
        """How far down the tree a queue would borrow for so many more GPUs."""
        quota = self.now.quota
        return quota.balance(pool).borrows(leaf=quota.tree.leaf_of[queue.name], gpus=gpus)

    def exhausted(self, *, gang: Gang, pool: str, size: int) -> Refusal | None:
        """The refusal of a gang for which there is no quota, now or once those start who wait."""
        refusal = self.now.quota.exhausted(gang=gang, pool=pool, size=size)
        if refusal or not self._nominations:
            return refusal
        return self.soon.quota.exhausted(gang=gang, pool=pool, size=size)

    def recall(self, *, gang: Gang, queue: Queue) -> None:
        """Keep the places that an earlier cycle promised a gang, if they can still be its."""
        pool, nodes = gang.nominated_pool, gang.nominated
        if (
            pool not in self.now.views
            or pool not in queue.nominal
            or pool not in (wishes(gang) or (pool,))
            or len(nodes) - gang.extras not in gang.legal_sizes
            or entry_refusal(gang=gang, queue=queue)
        ):
            return
        size = len(nodes) - gang.extras
        if self.soon.quota.has_room(gang=gang, pool=pool, size=size) and self.soon.fits(
            gang=gang, pool=pool, nodes=nodes
        ):
            self.nominate(Nomination(gang=gang, pool=pool, nodes=nodes))

    def nomination(self, gang: Gang) -> Nomination | None:
        """What is kept for a gang."""
        return self._nominations.get(gang.uid)

    def dismiss(self, victims: Iterable[Admitted]) -> None:
        """Count gangs as gone soon."""
        for held in victims:
            places = self.soon.views[held.pool].holders[held.gang.uid].places
            self.soon.dismiss(gang=held.gang, pool=held.pool)
            self._leaving.append(held)
            self.now.views[held.pool].leaving.add(held.gang.uid)
            self.now.views[held.pool].withhold(places)

    def nominate(self, nomination: Nomination) -> None:
        """Keep places for a gang."""
        gang, pool = nomination.gang, nomination.pool
        view = self.now.views[pool]
        self._nominations[gang.uid] = nomination
        self.soon.take(gang=gang, pool=pool, nodes=nomination.nodes)
        self.soon.quota.hold(gang=gang, pool=pool, size=nomination.size)
        holder = view.holder(gang=gang, nodes=nomination.nodes)
        view.nominees[gang.uid] = holder
        self.now.views[pool].withhold(holder.places)

    def release(self, nomination: Nomination) -> None:
        """Keep the places of a gang no longer."""
        gang, pool = nomination.gang, nomination.pool
        del self._nominations[gang.uid]
        self.soon.dismiss(gang=gang, pool=pool)
        holder = self.now.views[pool].nominees.pop(gang.uid)
        self.now.views[pool].withhold(holder.places)

    def in_the_way(self, nomination: Nomination) -> list[Admitted]:
        """Who still holds what a nominated gang waits for, as far as it was told to leave."""
        nodes = set(nomination.nodes)
        held = [one for one in self._leaving if one.pool == nomination.pool]
        return [one for one in held if nodes & set(one.assignment)] or held
