"""Keep free nodes for a gang that waits for other gangs to leave.

A gang that preempts, moves, or has a reservation waits for places on several nodes. Nodes that are
already free stay empty meanwhile, and an autoscaler removes empty nodes. (A gang that waits for new
nodes has placeholders for all of its places, `node_demands`. It keeps nothing here.)

Example: G gets n1 and n2, and preempts the gang on n1. Until this gang has saved and left, n2 is
kept.

A reservation counts only if it begins within the time that its pool gives an autoscaler to add
nodes. Before that, an idle node costs more than a new one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import Gang, Node, Snapshot
from drumline_scheduler.resources import NOTHING, Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptNode:
    """A node with a free place that was promised to a gang."""

    gang: Gang
    """The gang; the first one if the node is kept for several."""
    other_uids: tuple[str, ...] = ()
    """Uids of the other gangs, in order."""
    node: Node
    share: Resources
    """Resources that the gang takes of it, but with all GPUs that are free there. So only a node
    with that many free GPUs fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promise:
    gang: Gang
    pool: str
    places: Mapping[int, str]


def kept_nodes(
    *,
    snapshot: Snapshot,
    pending: Iterable[Gang],
    decisions: Decisions,
    timeouts: Mapping[str, float],
    now: float,
) -> tuple[KeptNode, ...]:
    """Return the free nodes that are kept in pools that may grow, by name.

    Args:
        snapshot: the cluster on which the cycle decided.
        pending: gangs that waited.
        decisions: decisions about them.
        timeouts: seconds that an autoscaler has to add nodes, by pool that may grow.
        now: seconds on the clock of the reservations.
    """
    if not timeouts:
        return ()
    # 1. Collect the promised places in pools that may grow.
    gangs = {gang.uid: gang for gang in pending}
    promises = [
        promise
        for promise in (
            *_promises(gangs, snapshot=snapshot, decisions=decisions),
            *_reservations(gangs, decisions=decisions, timeouts=timeouts, now=now),
        )
        if promise.pool in timeouts
    ]
    if not promises:
        return ()
    # 2. Keep nodes on which the promised share is free now. The first promise of a node counts.
    nodes = {node.name: node for node in snapshot.nodes}
    free = _free(nodes, snapshot)
    kept: dict[str, KeptNode] = {}
    for promise in promises:
        for name, share in _shares(promise).items():
            if name not in free or share.gpus == 0 or not share.fits_in(free[name]):
                continue
            if name in kept:
                kept[name] = replace(
                    kept[name], other_uids=(*kept[name].other_uids, promise.gang.uid)
                )
            else:
                whole = replace(share, gpus=free[name].gpus)
                kept[name] = KeptNode(gang=promise.gang, node=nodes[name], share=whole)
    return tuple(kept[name] for name in sorted(kept))


def _promises(
    gangs: Mapping[str, Gang], *, snapshot: Snapshot, decisions: Decisions
) -> Iterator[_Promise]:
    """Yield the places of gangs that wait for their victims to leave, or that move."""
    over = {placed.uid for placed in decisions.placed}.union(decisions.stay)
    for gang in gangs.values():
        if gang.nominated and gang.uid not in over:
            places = dict(enumerate(gang.nominated))
            yield _Promise(gang=gang, pool=gang.nominated_pool, places=places)
    for held in snapshot.admitted:
        if held.nominated and held.gang.uid not in over:
            pool = held.nominated_pool or held.pool
            yield _Promise(gang=held.gang, pool=pool, places=held.nominated)


def _reservations(
    gangs: Mapping[str, Gang],
    *,
    decisions: Decisions,
    timeouts: Mapping[str, float],
    now: float,
) -> Iterator[_Promise]:
    for reservation in decisions.reservations:
        gang, limit = gangs.get(reservation.uid), timeouts.get(reservation.pool)
        if gang is not None and limit is not None and reservation.start_at <= now + limit:
            places = dict(enumerate(reservation.assignment))
            yield _Promise(gang=gang, pool=reservation.pool, places=places)


def _free(nodes: Mapping[str, Node], snapshot: Snapshot) -> dict[str, Resources]:
    """Return the free resources of open nodes. Nodes with ending pods stay without being kept."""
    free = {name: node.allocatable - node.used for name, node in nodes.items() if _is_open(node)}
    for held in snapshot.admitted:
        for position in held.reserved - held.lost:
            name = held.assignment[position]
            if name in free:
                free[name] -= held.gang.request_of(position)
    return free


def _is_open(node: Node) -> bool:
    return node.ready and not (
        node.starting or node.unschedulable or node.quarantined or node.closed
    )


def _shares(promise: _Promise) -> dict[str, Resources]:
    shares: defaultdict[str, Resources] = defaultdict(lambda: NOTHING)
    for position, name in promise.places.items():
        shares[name] += promise.gang.request_of(position)
    return dict(shares)


def first_gangs(kept: Sequence[KeptNode], *, of_any: Collection[str]) -> frozenset[str]:
    """Return the uids of the first gangs of nodes that are kept for any of these gangs."""
    wanted = frozenset(of_any)
    return frozenset(
        each.gang.uid for each in kept if not wanted.isdisjoint((each.gang.uid, *each.other_uids))
    )
