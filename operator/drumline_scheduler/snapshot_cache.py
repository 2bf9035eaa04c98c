"""The current cluster view, kept from one cycle to the next and updated by what changed.

The starts and evictions of the last cycle are undone first. Then changed nodes are updated, and
gangs whose admission changed are removed and added again. If nodes are added or removed or change
their domains, or a gang requests a resource of a node that was not counted before, the view is
rebuilt from the snapshot.

Cost: O(changes), and one comparison by identity for each node and each running gang.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import compress
from operator import attrgetter, is_, is_not

from drumline_scheduler.model import Admitted, Gang, Node, Policy, Snapshot
from drumline_scheduler.placement.cluster_view import ClusterView
from drumline_scheduler.placement.pool_view import build_views
from drumline_scheduler.placement.resource_axis import ResourceAxis, axis_of
from drumline_scheduler.quota.quota_ledger import QuotaLedger, ledger_of

_QUEUE_OF = attrgetter("gang.queue")


class SnapshotCache:
    """A cluster view and the snapshot from which it was made."""

    def __init__(self) -> None:
        self._cluster: ClusterView | None = None
        self._ledger: QuotaLedger | None = None
        """The quota held by running gangs, without what a cycle adds."""
        self._snapshot = Snapshot(nodes=(), pools=(), queues=())
        self._admitted: dict[str, Admitted] = {}

    def cluster_view(
        self, *, snapshot: Snapshot, wanted: AbstractSet[str], policy: Policy
    ) -> ClusterView:
        """Return the cluster view of a snapshot.

        Args:
            snapshot: the snapshot.
            wanted: names of the resources that pending gangs request beside the plain ones.
            policy: the policy; the same in every cycle.
        """
        # 1. Compare the running gangs with the last cycle, and update the quota ledger.
        admitted, gone, came = self._compared(snapshot.admitted)
        axis = axis_of(wanted=wanted, admitted=(held.gang for held in came), nodes=snapshot.nodes)
        ledger = self._renewed_ledger(snapshot=snapshot, policy=policy, gone=gone, came=came)
        # 2. Update the view, or rebuild it if nodes or resources differ.
        cluster = self._cluster
        if cluster is not None and self._can_be_updated(
            snapshot=snapshot, axis=axis, cluster=cluster
        ):
            self._renew(cluster=cluster, snapshot=snapshot, gone=gone, came=came)
        else:
            running = (held.gang for held in snapshot.admitted)
            axis = axis_of(wanted=wanted, admitted=running, nodes=snapshot.nodes)
            cluster = ClusterView(pools=build_views(snapshot=snapshot, axis=axis), quota=ledger)
        # 3. Mark the state, so that the next cycle can undo what this one changes.
        cluster.quota = ledger.for_cycle(snapshot=snapshot, policy=policy)
        for view in cluster.pools.values():
            view.mark()
        self._cluster, self._ledger = cluster, ledger
        self._snapshot, self._admitted = snapshot, admitted
        return cluster

    def has_quota(self, gang: Gang, *, pool: str, size: int) -> bool:
        """Return whether quota allows a gang some size beside the gangs of the last snapshot.

        Args:
            gang: the gang.
            pool: name of the pool.
            size: number of main pods.
        """
        ledger = self._ledger
        return ledger is None or ledger.has_room(gang=gang, pool=pool, size=size)

    def _compared(
        self, held: Sequence[Admitted]
    ) -> tuple[dict[str, Admitted], list[Admitted], list[Admitted]]:
        """Return the running gangs by uid, the removed ones and the added ones."""
        before = self._snapshot.admitted
        if len(held) == len(before) and all(map(is_, held, before)):
            return self._admitted, [], []
        admitted = {each.gang.uid: each for each in held}
        gone = _missing(self._admitted, among=admitted)
        return admitted, gone, _missing(admitted, among=self._admitted)

    def _can_be_updated(
        self, *, snapshot: Snapshot, axis: ResourceAxis, cluster: ClusterView
    ) -> bool:
        """Return whether the nodes are in the same places, and no further resource is counted."""
        before = self._snapshot
        if snapshot.pools != before.pools or len(snapshot.nodes) != len(before.nodes):
            return False
        if any(set(axis.names) - set(view.axis.names) for view in cluster.pools.values()):
            return False
        pairs = _changed_pairs(before.nodes, snapshot.nodes)
        return all(_is_in_place(old, new) for old, new in pairs)

    def _renew(
        self,
        *,
        cluster: ClusterView,
        snapshot: Snapshot,
        gone: Iterable[Admitted],
        came: Iterable[Admitted],
    ) -> None:
        # Undo the last cycle before anything else: its starts and evictions are not in the snapshot
        # yet, or they are now part of `admitted`.
        cluster.tidy()
        for view in cluster.pools.values():
            view.rewind()
        for _, new in _changed_pairs(self._snapshot.nodes, snapshot.nodes):
            if new.pool in cluster.pools:
                cluster.renew(new)
        for held in gone:
            if held.pool in cluster.pools:
                cluster.pools[held.pool].remove_admitted(held)
        for held in came:
            if held.pool in cluster.pools:
                cluster.pools[held.pool].add_admitted(held)

    def _renewed_ledger(
        self,
        *,
        snapshot: Snapshot,
        policy: Policy,
        gone: Sequence[Admitted],
        came: Sequence[Admitted],
    ) -> QuotaLedger:
        ledger = self._ledger
        if (
            ledger is None
            or snapshot.queues != self._snapshot.queues
            or ((gone or came) and not _covers(ledger, snapshot))
        ):
            ledger = ledger_of(snapshot=snapshot, policy=policy)
            # A new ledger is empty, so every running gang counts as added.
            gone, came = (), snapshot.admitted
        for held in gone:
            ledger.credit(gang=held.gang, pool=held.pool)
        for held in came:
            ledger.hold(gang=held.gang, pool=held.pool, size=held.size)
        return ledger


def _changed_pairs(before: Sequence[Node], now: Sequence[Node]) -> Iterable[tuple[Node, Node]]:
    """Return the old and the new value of nodes that are other objects than before."""
    # The comparison of thousands of nodes runs in C.
    return compress(zip(before, now, strict=True), map(is_not, before, now))


def _missing(admitted: Mapping[str, Admitted], *, among: Mapping[str, Admitted]) -> list[Admitted]:
    """Return gangs without the same slots in `among`. Most are the same object there."""
    new = compress(admitted.values(), map(is_not, map(among.get, admitted), admitted.values()))
    return [each for each in new if not _holds_same_slots(each, among.get(each.gang.uid))]


def _holds_same_slots(held: Admitted, other: Admitted | None) -> bool:
    """Return whether a gang holds the same places as before."""
    return (
        other is not None
        and held.gang is other.gang
        and held.pool == other.pool
        and held.assignment == other.assignment
        and held.reserved == other.reserved
        and held.lost == other.lost
    )


def _is_in_place(old: Node, new: Node) -> bool:
    """Return whether a node has the same pool and domains as before."""
    return old.name == new.name and old.pool == new.pool and old.domains == new.domains


def _covers(ledger: QuotaLedger, snapshot: Snapshot) -> bool:
    """Return whether the queues in the ledger are those of the snapshot and of its jobs."""
    names = set(map(_QUEUE_OF, snapshot.admitted))
    names.update(queue.name for queue in snapshot.queues)
    return names == ledger.tree.leaf_of.keys()
