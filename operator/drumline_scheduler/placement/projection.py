"""The current and the projected view of the cluster in one cycle.

The *projected* view is the cluster after all evictions in progress. Evicted gangs and evicted
surplus of elastic gangs are gone. So are terminating pods that are not overdue (`Node.overdue`).
Each nominated gang is on its nominated nodes: a waiting gang, a broken gang that waits for
replacements, or a gang that moves. If a gang can no longer move to its new nodes, it stays where it
is. The projected view is made on first use. Two rules connect it to the *current* view:

* A gang that starts takes its nodes in both views and needs quota in both.
* On each node, the current view withholds the capacity that would be missing in the projected view
  (`withheld_capacity`). So no gang starts on kept capacity, and the other capacity stays usable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from drumline_scheduler.model import Admitted, Gang, Queue, order_key
from drumline_scheduler.placement.cluster_view import ClusterView
from drumline_scheduler.quota.pool_selection import requested_pools
from drumline_scheduler.quota.queue_access import access_rejection
from drumline_scheduler.rejections import Rejection
from drumline_scheduler.resources import NOTHING
from drumline_scheduler.undo import Undo


@dataclass(frozen=True, slots=True, kw_only=True)
class Nomination:
    """The nodes that are kept for a gang."""

    gang: Gang
    pool: str
    nodes: tuple[str, ...]
    positions: tuple[int, ...] | None = None
    """Positions of a broken or displaced gang that wait for these nodes. None: the whole gang
    waits."""

    @property
    def gpus(self) -> int:
        """GPUs that will count in its queue."""
        return self.gang.gpus_at(self.size)

    @property
    def size(self) -> int:
        """Number of main pods that the gang will start with."""
        return len(self.nodes) - self.gang.extras


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvictingGang:
    """A gang that is being evicted, as a whole or except for the kept positions.

    Compared by identity: hundreds of them are looked up in a list.
    """

    held: Admitted
    kept: tuple[int, ...] = ()

    @property
    def nodes(self) -> set[str]:
        """The nodes that the gang will leave."""
        stays = frozenset(self.kept)
        return {name for i, name in enumerate(self.held.assignment) if i not in stays}


class Projection:
    """The two views of one cycle."""

    def __init__(self, *, current: ClusterView, admitted: Collection[Admitted]) -> None:
        self.current = current
        for held in admitted:
            if held.is_overdue and held.pool in current.pools:
                current.pools[held.pool].overdue.add(held.gang.uid)
        self._projected: ClusterView | None = None
        self._leaving = [
            EvictingGang(held=held, kept=() if held.leaving else _kept(held))
            for held in admitted
            if (held.leaving or held.giving_up) and held.pool in current.pools
        ]
        for evicting in self._leaving:
            current.pools[evicting.held.pool].leaving.add(evicting.held.gang.uid)
        self._nominations: dict[str, Nomination] = {}
        self._undo_of: dict[str, Undo] = {}
        """Undo of a nomination in the projected view, by uid."""

    @property
    def projected(self) -> ClusterView:
        """The view after all evictions in progress."""
        if self._projected is None:
            self._projected = self.current.copy()
            for evicting in self._leaving:
                _leave(cluster=self._projected, evicting=evicting)
            for pool, view in self._projected.pools.items():
                view.remove_terminating()
                # The current view may use no more than is free in the projected one.
                self.current.pools[pool].withheld.limit = view.free
        return self._projected

    @property
    def effective(self) -> ClusterView:
        """The projected view, or the current view while both are equal, which is cheaper."""
        calm = self._projected is None and not self._leaving
        return self.current if calm and not self._pods_end else self.projected

    @cached_property
    def _pods_end(self) -> bool:
        """True if any pod is being deleted and expected to end."""
        views = self.current.pools.values()
        nodes = (node for view in views for node in view.tree.nodes)
        return any(node.terminating is not NOTHING and node.ending != NOTHING for node in nodes)

    def take(
        self,
        *,
        gang: Gang,
        pool: str,
        nodes: Sequence[str],
        positions: Sequence[int] | None = None,
    ) -> None:
        """Give a gang nodes in both views. `positions` None: the first positions.

        Args:
            gang: the gang to place.
            pool: name of the pool.
            nodes: a node for each position.
            positions: positions in the gang. None means the first ones.
        """
        self.current.take(gang=gang, pool=pool, nodes=nodes, positions=positions)
        if self._projected is not None:
            self._projected.take(gang=gang, pool=pool, nodes=nodes, positions=positions)

    def hold(self, *, gang: Gang, pool: str, size: int) -> None:
        """Set the quota usage of a gang in both views.

        Args:
            gang: the gang to place.
            pool: name of the pool.
            size: number of main pods.
        """
        self.current.quota.hold(gang=gang, pool=pool, size=size)
        if self._projected is not None:
            self._projected.quota.hold(gang=gang, pool=pool, size=size)

    def withdraw(self, *, gang: Gang, pool: str) -> None:
        """Take back everything that a gang got in this cycle."""
        self.current.dismiss(gang=gang, pool=pool)
        if self._projected is not None:
            self._projected.dismiss(gang=gang, pool=pool)

    def has_quota(self, *, gang: Gang, pool: str, size: int) -> bool:
        """Return whether quota allows a gang `size` main pods, also once nominated gangs start.

        Args:
            gang: the gang to place.
            pool: name of the pool.
            size: number of main pods.
        """
        views = [self.current, self.projected] if self._nominations else [self.current]
        return all(view.quota.has_room(gang=gang, pool=pool, size=size) for view in views)

    def exhausted(self, *, gang: Gang, pool: str, size: int) -> Rejection | None:
        """Return the rejection of a gang without quota now, or once nominated gangs start.

        Args:
            gang: the gang to place.
            pool: name of the pool.
            size: number of main pods.
        """
        rejection = self.current.quota.exhausted(gang=gang, pool=pool, size=size)
        if rejection or not self._nominations:
            return rejection
        return self.projected.quota.exhausted(gang=gang, pool=pool, size=size)

    def is_at_rest(self, pool: str) -> bool:
        """Return whether no gang of a pool is being evicted or nominated."""
        leaves = any(entry.held.pool == pool for entry in self._leaving)
        return not leaves and all(entry.pool != pool for entry in self._nominations.values())

    @property
    def nominated(self) -> Iterable[str]:
        """Uids of the nominated gangs."""
        return self._nominations.keys()

    def nomination(self, gang: Gang) -> Nomination | None:
        """Return the nomination of a gang, if it has one."""
        return self._nominations.get(gang.uid)

    def recall_running(self, running: Iterable[Admitted]) -> tuple[str, ...]:
        """Nominate running gangs again in scheduling order: for a repair, or for a move.

        Returns:
            Uids of gangs whose move is cancelled: they can no longer move to their nodes.
        """
        nominated = (held for held in running if held.nominated)
        line: list[Admitted] = sorted(nominated, key=lambda held: order_key(held.gang))
        stay: list[str] = []
        while True:
            failed = [held for held in line if not self._recalled(held)]
            cancelled = [held for held in failed if held.leaving]
            if not cancelled:
                return tuple(sorted(stay))
            for held in cancelled:
                self._stay(held)
                stay.append(held.gang.uid)
            # Other gangs may be nominated on the nodes on which these stay: start over.
            line = [held for held in line if held.gang.uid not in stay]
            for nomination in list(self._nominations.values()):
                self.release(nomination)

    def _recalled(self, held: Admitted) -> bool:
        """Nominate a running gang again if it still fits, and return whether it did."""
        gang, pool = held.gang, held.nominated_pool or held.pool
        positions = tuple(sorted(held.nominated))
        nodes = tuple(held.nominated[position] for position in positions)
        if pool not in self.current.pools:
            return False
        # A gang that moves needs new nodes for all pods, and quota if it changes its pool. A broken
        # or displaced gang needs nodes for exactly its vacant positions, and has its quota.
        if held.leaving:
            may = pool == held.pool or self.projected.quota.has_room(
                gang=gang, pool=pool, size=held.size
            )
            fits = may and self.projected.fits(gang=gang, pool=pool, nodes=nodes)
            nomination = Nomination(gang=gang, pool=pool, nodes=nodes)
        else:
            fits = held.vacant == frozenset(positions) and self.projected.fits(
                gang=gang, pool=pool, nodes=nodes, kept=held.staying
            )
            nomination = Nomination(gang=gang, pool=pool, nodes=nodes, positions=positions)
        if fits:
            self.nominate(nomination)
        return fits

    def _stay(self, held: Admitted) -> None:
        """Count a gang that was being evicted as staying."""
        view, uid = self.current.pools.get(held.pool), held.gang.uid
        if view is None:
            return
        self._leaving = [evicting for evicting in self._leaving if evicting.held.gang.uid != uid]
        _enter_kept(cluster=self.projected, held=held, kept=range(len(held.assignment)))
        view.leaving.discard(uid)
        # Its nodes are not freed, so less is withheld for the gangs nominated there.
        view.withheld.update(view.allocations[uid].places)

    def dismiss(self, *, held: Admitted, kept: tuple[int, ...] = ()) -> Undo:
        """Remove an evicted gang from the projected view, except for the positions it keeps.

        Returns:
            The undo. Later changes must have been undone before.
        """
        view, uid = self.current.pools[held.pool], held.gang.uid
        places = self.projected.pools[held.pool].allocations[uid].places
        evicting, was_leaving = EvictingGang(held=held, kept=kept), uid in view.leaving
        undo_leave = _leave(cluster=self.projected, evicting=evicting)
        self._leaving.append(evicting)
        view.leaving.add(uid)
        view.withheld.update(places)

        def undo() -> None:
            undo_leave()
            self._leaving.remove(evicting)
            if not was_leaving:
                view.leaving.discard(uid)
            view.withheld.update(places)

        return undo

    def nominate(self, nomination: Nomination) -> None:
        """Keep nodes for a gang."""
        gang, pool = nomination.gang, nomination.pool
        view = self.current.pools[pool]
        allocation = view.allocation(
            gang=gang, nodes=nomination.nodes, positions=nomination.positions
        )
        self._nominations[gang.uid] = nomination
        # The nominated gang occupies its nodes in the projected view only. The current view still
        # has the evicted gangs there and withholds the difference.
        self._undo_of[gang.uid] = self.projected.pools[pool].occupy(allocation)
        for cluster in (self.current, self.projected) if gang.volumes else ():
            cluster.used.note(gang=gang, nodes=nomination.nodes, view=cluster.pools[pool])
        # A repair keeps the quota that the whole gang already pays for.
        if nomination.positions is None:
            self.projected.quota.hold(gang=gang, pool=pool, size=nomination.size)
            self.current.quota.promise(gang=gang, pool=pool, size=nomination.size)
        view.nominees[gang.uid] = allocation
        view.withheld.update(allocation.places)

    def release(self, nomination: Nomination) -> None:
        """End the nomination of a gang."""
        gang, pool = nomination.gang, nomination.pool
        del self._nominations[gang.uid]
        self._undo_of.pop(gang.uid)()
        for cluster in (self.current, self.projected) if gang.volumes else ():
            cluster.used.forget(gang)
        if nomination.positions is None:
            self.projected.quota.credit(gang=gang, pool=pool)
            self.current.quota.promise(gang=gang, pool=pool, size=None)
        allocation = self.current.pools[pool].nominees.pop(gang.uid)
        self.current.pools[pool].withheld.update(allocation.places)

    def in_the_way(self, nomination: Nomination) -> list[Admitted]:
        """Return the gangs being evicted that a nominated gang still waits for.

        These gangs leave its nominated nodes. If there are none, all evicted gangs of the pool
        count.
        """
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
    """Nominate again the slots that an earlier cycle reserved, if the gang can still use them.

    Args:
        projection: current and projected view.
        gang: the gang to place.
        queue: the gang's queue.
    """
    pool, nodes = gang.nominated_pool, gang.nominated
    if (
        pool not in projection.current.pools
        or pool not in queue.nominal
        or pool not in (requested_pools(gang) or (pool,))
        or len(nodes) - gang.extras not in gang.legal_sizes
        or access_rejection(gang=gang, queue=queue)
    ):
        return
    # The nodes are checked in the projected view: the victims may still be there.
    size = len(nodes) - gang.extras
    if projection.projected.quota.has_room(
        gang=gang, pool=pool, size=size
    ) and projection.projected.fits(gang=gang, pool=pool, nodes=nodes):
        projection.nominate(Nomination(gang=gang, pool=pool, nodes=nodes))


def _kept(held: Admitted) -> tuple[int, ...]:
    """Return the positions that a shrinking gang keeps."""
    return tuple(i for i in range(len(held.assignment)) if i not in held.giving_up)


def _leave(*, cluster: ClusterView, evicting: EvictingGang) -> Undo:
    """Remove the places that an evicted gang gives up, and return the undo."""
    gang, pool = evicting.held.gang, evicting.held.pool
    undo = cluster.dismiss(gang=gang, pool=pool)
    if not evicting.kept:
        return undo
    _enter_kept(cluster=cluster, held=evicting.held, kept=evicting.kept)

    def undo_all() -> None:
        cluster.dismiss(gang=gang, pool=pool)
        undo()

    return undo_all


def _enter_kept(*, cluster: ClusterView, held: Admitted, kept: Sequence[int]) -> None:
    """Enter a gang that holds nothing with some of its positions."""
    gang, view = held.gang, cluster.pools[held.pool]
    stays = [position for position in kept if position not in held.lost]
    nodes = [held.assignment[position] for position in stays]
    view.occupy(view.allocation(gang=gang, nodes=nodes, positions=stays))
    cluster.quota.hold(gang=gang, pool=held.pool, size=len(kept) - gang.extras)
