"""Now and soon: two views that keep what is promised to those who wait for victims.

*Soon* is the cluster without the gangs (and the surplus of elastic ones) that were told to leave
and without pods that are being deleted, and with each nominated gang in the places that are kept
for it: one that waits, a broken one that waits for replacements, one that moves. One that was to
move to places which are none any more stays where it is. Soon is made when somebody first needs it.
Two rules tie it to *now*:

* Whoever starts takes its places in both, and needs quota in both.
* On each node, what would be missing soon is withheld now. So nobody can start on capacity that
  is kept, while the rest of a node stays usable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from drumline.scheduling.model import Admitted, Gang, Queue
from drumline.scheduling.placement.cluster_view import ClusterView
from drumline.scheduling.quota.pool_selection import requested_pools
from drumline.scheduling.quota.queue_access import access_rejection
from drumline.scheduling.rejections import Rejection
from drumline.scheduling.resources import NOTHING
from drumline.scheduling.undo import Undo


@dataclass(frozen=True, slots=True, kw_only=True)
class Nomination:
    """The places that are kept for a gang."""

    gang: Gang
    pool: str
    nodes: tuple[str, ...]
    positions: tuple[int, ...] | None = None
    """Which positions of a broken running gang these are; None: the whole gang."""

    @property
    def gpus(self) -> int:
        """GPUs its queue will pay."""
        return self.gang.gpus_at(self.size)

    @property
    def size(self) -> int:
        """How many main pods it will start with."""
        return len(self.nodes) - self.gang.extras


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictingGang:
    """A running gang that was told to leave, or to go on with some positions only."""

    held: Admitted
    kept: tuple[int, ...] = ()

    @property
    def nodes(self) -> set[str]:
        """Where it gives places up."""
        stays = frozenset(self.kept)
        return {name for i, name in enumerate(self.held.assignment) if i not in stays}


class Projection:
    """The two views of one cycle."""

    def __init__(self, *, current: ClusterView, admitted: Iterable[Admitted]) -> None:
        self.current = current
        self._projected: ClusterView | None = None
        self._leaving = [
            EvictingGang(held=held, kept=() if held.leaving else _kept(held))
            for held in admitted
            if (held.leaving or held.giving_up) and held.pool in current.pools
        ]
        for leaver in self._leaving:
            current.pools[leaver.held.pool].leaving.add(leaver.held.gang.uid)
        self._nominations: dict[str, Nomination] = {}
        self._taken_back: dict[str, Undo] = {}
        """By uid: how places that are kept for a gang are given back soon."""

    @property
    def projected(self) -> ClusterView:
        """The cluster view once everybody has left who was told to."""
        if self._projected is None:
            self._projected = self.current.copy()
            for leaver in self._leaving:
                _leave(cluster=self._projected, leaver=leaver)
            for pool, view in self._projected.pools.items():
                view.remove_terminating()
                self.current.pools[pool].withheld.limit = view.free
        return self._projected

    @property
    def effective(self) -> ClusterView:
        """Soon; or now, for less, while there is no difference."""
        calm = self._projected is None and not self._leaving
        return self.current if calm and not self._pods_end else self.projected

    @cached_property
    def _pods_end(self) -> bool:
        """Whether pods are being deleted anywhere."""
        views = self.current.pools.values()
        return any(node.terminating is not NOTHING for view in views for node in view.tree.nodes)

    def take(
        self,
        *,
        gang: Gang,
        pool: str,
        nodes: Sequence[str],
        positions: Sequence[int] | None = None,
    ) -> None:
        """Give a gang places, beside those it may have; `positions`: which (None: the first)."""
        self.current.take(gang=gang, pool=pool, nodes=nodes, positions=positions)
        if self._projected is not None:
            self._projected.take(gang=gang, pool=pool, nodes=nodes, positions=positions)

    def hold(self, *, gang: Gang, pool: str, size: int) -> None:
        """Count a gang in its queue with so many main pods, whatever it held there before."""
        self.current.quota.hold(gang=gang, pool=pool, size=size)
        if self._projected is not None:
            self._projected.quota.hold(gang=gang, pool=pool, size=size)

    def withdraw(self, *, gang: Gang, pool: str) -> None:
        """Take back what a gang was given in this cycle."""
        self.current.dismiss(gang=gang, pool=pool)
        if self._projected is not None:
            self._projected.dismiss(gang=gang, pool=pool)

    def has_quota(self, *, gang: Gang, pool: str, size: int) -> bool:
        """Whether a gang may hold so many main pods, now and once those start who wait."""
        views = [self.current, self.projected] if self._nominations else [self.current]
        return all(view.quota.has_room(gang=gang, pool=pool, size=size) for view in views)

    def exhausted(self, *, gang: Gang, pool: str, size: int) -> Rejection | None:
        """The rejection of a gang for which there is no quota, now or once those start who wait."""
        rejection = self.current.quota.exhausted(gang=gang, pool=pool, size=size)
        if rejection or not self._nominations:
            return rejection
        return self.projected.quota.exhausted(gang=gang, pool=pool, size=size)

    def is_at_rest(self, pool: str) -> bool:
        """Whether nobody leaves a pool, or waits for others to leave it."""
        leaves = any(entry.held.pool == pool for entry in self._leaving)
        return not leaves and all(entry.pool != pool for entry in self._nominations.values())

    @property
    def nominated(self) -> Iterable[str]:
        """Uids of those for whom places are kept."""
        return self._nominations.keys()

    def nomination(self, gang: Gang) -> Nomination | None:
        """What is kept for a gang."""
        return self._nominations.get(gang.uid)

    def recall_running(self, running: Iterable[Admitted]) -> tuple[str, ...]:
        """Keep what was promised to running gangs: new places for lost ones, or to move to.

        Returns:
            Uids of those that need not leave: they were only to move, and cannot move there now.
        """
        line: list[Admitted] = [held for held in running if held.nominated]
        stay: list[str] = []
        while True:
            failed = [held for held in line if not self._recalled(held)]
            stranded = [held for held in failed if held.leaving]
            if not stranded:
                return tuple(sorted(stay))
            for held in stranded:
                self._stay(held)
                stay.append(held.gang.uid)
            # Others may have been promised the places in which these stay: all of it once more.
            line = [held for held in line if held.gang.uid not in stay]
            for nomination in list(self._nominations.values()):
                self.release(nomination)

    def _recalled(self, held: Admitted) -> bool:
        """Keep what was promised to a running gang, if it can still be its."""
        gang, pool = held.gang, held.nominated_pool or held.pool
        positions = tuple(sorted(held.nominated))
        nodes = tuple(held.nominated[position] for position in positions)
        if pool not in self.current.pools:
            return False
        if held.leaving:
            may = pool == held.pool or self.projected.quota.has_room(
                gang=gang, pool=pool, size=held.size
            )
            fits = may and self.projected.fits(gang=gang, pool=pool, nodes=nodes)
            nomination = Nomination(gang=gang, pool=pool, nodes=nodes)
        else:
            fits = held.lost == frozenset(positions) and self.projected.fits(
                gang=gang, pool=pool, nodes=nodes, kept=held.survivors
            )
            nomination = Nomination(gang=gang, pool=pool, nodes=nodes, positions=positions)
        if fits:
            self.nominate(nomination)
        return fits

    def _stay(self, held: Admitted) -> None:
        """Count a gang that was told to leave as one that goes on where it is."""
        view, uid = self.current.pools.get(held.pool), held.gang.uid
        if view is None:
            return
        self._leaving = [evicting for evicting in self._leaving if evicting.held.gang.uid != uid]
        _go_on(cluster=self.projected, held=held, kept=range(len(held.assignment)))
        view.leaving.discard(uid)
        view.withheld.update(view.allocations[uid].places)

    def dismiss(self, *, held: Admitted, kept: tuple[int, ...] = ()) -> None:
        """Count a gang as gone soon, or as gone on with some positions only."""
        places = self.projected.pools[held.pool].allocations[held.gang.uid].places
        leaver = EvictingGang(held=held, kept=kept)
        _leave(cluster=self.projected, leaver=leaver)
        self._leaving.append(leaver)
        self.current.pools[held.pool].leaving.add(held.gang.uid)
        self.current.pools[held.pool].withheld.update(places)

    def nominate(self, nomination: Nomination) -> None:
        """Keep places for a gang."""
        gang, pool = nomination.gang, nomination.pool
        view = self.current.pools[pool]
        allocation = view.allocation(
            gang=gang, nodes=nomination.nodes, positions=nomination.positions
        )
        self._nominations[gang.uid] = nomination
        self._taken_back[gang.uid] = self.projected.pools[pool].occupy(allocation)
        if nomination.positions is None:
            self.projected.quota.hold(gang=gang, pool=pool, size=nomination.size)
            self.current.quota.promise(gang=gang, pool=pool, size=nomination.size)
        view.nominees[gang.uid] = allocation
        view.withheld.update(allocation.places)

    def release(self, nomination: Nomination) -> None:
        """Keep the places of a gang no longer."""
        gang, pool = nomination.gang, nomination.pool
        del self._nominations[gang.uid]
        self._taken_back.pop(gang.uid)()
        if nomination.positions is None:
            self.projected.quota.credit(gang=gang, pool=pool)
            self.current.quota.promise(gang=gang, pool=pool, size=None)
        allocation = self.current.pools[pool].nominees.pop(gang.uid)
        self.current.pools[pool].withheld.update(allocation.places)

    def in_the_way(self, nomination: Nomination) -> list[Admitted]:
        """Who still holds what a nominated gang waits for, as far as it was told to leave."""
        nodes = set(nomination.nodes)
        there = [
            evicting
            for evicting in self._leaving
            if evicting.held.pool == nomination.pool
            and evicting.held.gang.uid != nomination.gang.uid
        ]
        return [evicting.held for evicting in there if nodes & evicting.nodes] or [
            evicting.held for evicting in there
        ]


def recall_pending(projection: Projection, *, gang: Gang, queue: Queue) -> None:
    """Nominate again the slots that an earlier cycle reserved, if the gang can still have them."""
    pool, nodes = gang.nominated_pool, gang.nominated
    if (
        pool not in projection.current.pools
        or pool not in queue.nominal
        or pool not in (requested_pools(gang) or (pool,))
        or len(nodes) - gang.extras not in gang.legal_sizes
        or access_rejection(gang=gang, queue=queue)
    ):
        return
    size = len(nodes) - gang.extras
    if projection.projected.quota.has_room(
        gang=gang, pool=pool, size=size
    ) and projection.projected.fits(gang=gang, pool=pool, nodes=nodes):
        projection.nominate(Nomination(gang=gang, pool=pool, nodes=nodes))


def _kept(held: Admitted) -> tuple[int, ...]:
    """Positions with which a gang goes on that gives some up."""
    return tuple(i for i in range(len(held.assignment)) if i not in held.giving_up)


def _leave(*, cluster: ClusterView, leaver: EvictingGang) -> None:
    """Take from a gang what it was told to give up."""
    cluster.dismiss(gang=leaver.held.gang, pool=leaver.held.pool)
    if leaver.kept:
        _go_on(cluster=cluster, held=leaver.held, kept=leaver.kept)


def _go_on(*, cluster: ClusterView, held: Admitted, kept: Sequence[int]) -> None:
    """Have a gang go on with some positions; it holds nothing any more."""
    gang, view = held.gang, cluster.pools[held.pool]
    stays = [position for position in kept if position not in held.lost]
    nodes = [held.assignment[position] for position in stays]
    view.occupy(view.allocation(gang=gang, nodes=nodes, positions=stays))
    cluster.quota.hold(gang=gang, pool=held.pool, size=len(kept) - gang.extras)
