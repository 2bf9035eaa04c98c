"""A hypothetical cluster in which decisions are carried out and requested nodes have come.

The cycle decides on it about one gang at a time. Each gang takes its places before the next is
considered. No other gang is preempted, repaired or moved in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Decisions, NeedsNodes, Placed, Preemption
from drumline_scheduler.model import Admitted, Gang, Node, NodeOffer, Policy, Snapshot
from drumline_scheduler.model.autoscaling import ZONE_LABEL
from drumline_scheduler.offered_nodes import OfferedNode, OfferedNodes
from drumline_scheduler.placement.eligibility import node_filter_of
from drumline_scheduler.queueing.search_costs import cost_of
from drumline_scheduler.resources import NOTHING, Resources
from drumline_scheduler.work import never_late

Decide = Callable[[CycleInput], Decisions]
"""Decides a cycle."""
_TRY_UNITS: Final = 64
"""Units of the tries for the fewest new nodes of one gang."""
_LEAST_TRIES: Final = 4
"""Number of such tries of a costly gang."""
_MOST_KEPT: Final = 256
"""Nodes of an offer that are kept after a try in which they did not help."""
_BARE_POLICY: Final = Policy()
"""No gang waits for another one, because such a gang was not rejected for capacity."""


def bare_cycle(snapshot: Snapshot, pending: tuple[Gang, ...], *, now: float) -> CycleInput:
    """Return a cycle that asks only whether these gangs have capacity on a cluster.

    Args:
        snapshot: the cluster to place on.
        pending: the only gangs that wait in it.
        now: Unix time in seconds.
    """
    return CycleInput(
        snapshot=snapshot, pending=pending, policy=_BARE_POLICY, now=now, explain=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStart:
    """A gang that starts, and the nodes that it needs for it. `need.nodes` 0: no new nodes."""

    placed: Placed
    shares: Mapping[str, Resources]
    """Resources that its new pods request, by node."""
    need: NeedsNodes


@dataclass(slots=True, kw_only=True)
class _ComingNode:
    """A node of an offer."""

    new: OfferedNode
    has_come: bool = False

    @property
    def now(self) -> Node:
        return self.new.node if self.has_come else self.new.absent


@dataclass(slots=True, kw_only=True)
class _Shortage:
    """The resources and slots that a gang lacks in a pool beside the free ones there."""

    amounts: dict[str, int]
    """Resources of all its pods. Negative: there are more than it needs."""
    requests: Sequence[Mapping[str, int]]
    """Resources of a pod of each kind."""
    missing: list[int]
    """Pods of each kind without a slot, if no other kind took one."""

    @classmethod
    def of(cls, kinds: Sequence[tuple[Resources, int]]) -> _Shortage:
        """Return the shortage of pods of some kinds where nothing is free."""
        wanted = sum((request.times(count) for request, count in kinds), NOTHING)
        return cls(
            amounts=wanted.amounts(),
            requests=[request.amounts() for request, _ in kinds],
            missing=[count for _, count in kinds],
        )

    def take(self, free: Mapping[str, int], *, nodes: int) -> None:
        """Take the free resources of some nodes that have equal ones."""
        for name, amount in free.items():
            if amount > 0 and name in self.amounts:
                self.amounts[name] -= amount * nodes
        self.missing = [
            count - _slots(request, free=free) * nodes
            for request, count in zip(self.requests, self.missing, strict=True)
        ]

    @property
    def is_none(self) -> bool:
        """True if nothing is known to lack."""
        return max(0, *self.amounts.values(), *self.missing) == 0

    def new_nodes(self, offer: NodeOffer) -> int:
        """Return a number of new nodes below which the gang lacks resources or slots."""
        each = offer.node.allocatable.amounts()
        bounds = [-(-amount // each[name]) for name, amount in self.amounts.items() if name in each]
        for request, count in zip(self.requests, self.missing, strict=True):
            if slots := _slots(request, free=each):
                bounds.append(-(-count // slots))
        return max(0, *bounds)


class GrownCluster:
    """A hypothetical cluster in which decisions are carried out and requested nodes have come.

    Args:
        snapshot: the cluster without anything that is still to be decided.
        now: time of the cycle.
        decide: decides a cycle.
        nodes: makes the new nodes.
        is_late: whether the time of the cycle is over at a place. Then no fewer nodes are tried.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        now: float,
        decide: Decide,
        nodes: OfferedNodes,
        is_late: Callable[[str], bool] = never_late,
    ) -> None:
        self._snapshot = snapshot
        self._now = now
        self._decide = decide
        self._nodes = nodes
        self._is_late = is_late
        self._coming: list[_ComingNode] = []
        """All nodes of offers in the world, in the order in which they were made."""
        self._of_offer: dict[tuple[str, str], list[_ComingNode]] = {}
        """Nodes that have not come, by pool and zone of the offer."""
        self._broken = {
            held.gang.uid: replace(held, leaving=False) for held in snapshot.admitted if held.lost
        }
        self._lacking: dict[tuple[str, str | None, int], Mapping[str, _Shortage]] = {}
        """The shortages of gangs in each pool, by uid, zone and pods."""
        self._taken: dict[str, Resources] = {}
        """Resources that pods take beside `Node.used`, by node."""
        for held in snapshot.admitted:
            if reserved := sorted(held.reserved - held.lost):
                self._occupy(_shares_at(held.gang, names=held.assignment, positions=reserved))

    @property
    def new(self) -> list[OfferedNode]:
        """The nodes that have come."""
        return [each.new for each in self._coming if each.has_come]

    @property
    def came(self) -> int:
        """Number of nodes that have come."""
        return sum(each.has_come for each in self._coming)

    def provide(self, offer: NodeOffer, count: int) -> None:
        """Make that many nodes of an offer, none of which has come.

        A view is rebuilt when the number of nodes changes. So the nodes of all gangs are best made
        before the first gang is tried.
        """
        made = self._of_offer.setdefault((offer.pool, offer.zone), [])
        more = self._nodes.take(offer, max(0, count - len(made)))
        coming = [_ComingNode(new=each) for each in more]
        made += coming
        self._coming += coming

    def _drop_many(self, offer: NodeOffer) -> None:
        """Drop the nodes of an offer that have not come, if they make further tries slow."""
        made = self._of_offer[offer.pool, offer.zone]
        if len(made) > _MOST_KEPT:
            dropped = set(map(id, made))
            self._coming = [each for each in self._coming if id(each) not in dropped]
            made.clear()

    def takes_free_places(self, gang: Gang) -> bool:
        """Take free places for a gang beside the gangs before it, and return whether it fits.

        Before any new node was added, the cycle itself has already rejected the gang.
        """
        placed = self._placed(gang) if self.came else None
        if placed is None or len(placed.assignment) < gang.nodes + gang.extras:
            return False
        self._take(gang, placed)
        return True

    def start(
        self, gang: Gang, *, offer: NodeOffer, most: int, is_asked: bool = False
    ) -> GangStart | None:
        """Start a gang in its largest size that fits, with the fewest new nodes of an offer.

        If the new nodes are in one zone, the gang is placed in that zone alone. Otherwise it could
        use free nodes in other zones. Placeholders only fit in the zone, so those nodes would be
        requested again.

        Args:
            gang: the gang.
            offer: the kind of the new nodes.
            most: largest number of new nodes. 0: it may only start where pods end.
            is_asked: whether an earlier cycle found this number. Usually it is still the fewest.

        Returns:
            The start. None if `most` nodes are not enough.
        """
        gang = _within_zone(gang, offer)
        least = 0 if is_asked else self._least(gang, offer=offer)
        if least > most:
            return None
        self.provide(offer, most)
        nodes, placed, count = self._of_offer[offer.pool, offer.zone], None, least
        # Mostly a gang of one size starts with the least that it can start with.
        if 0 < least < most and len(gang.legal_sizes) == 1:
            placed = self._placed(gang, more=nodes[:least])
        if placed is None:
            placed = self._placed(gang, more=nodes[:most])
            if placed is None:
                self._drop_many(offer)
                return None
            # The nodes of an offer are alike, so the ones that it takes are made the first ones.
            names = frozenset(placed.assignment)
            used = [each for each in nodes[:most] if each.new.node.name in names]
            unused = [each for each in nodes[:most] if each.new.node.name not in names]
            nodes[:most] = used + unused
            placed, count = self._with_fewest(gang, offer=offer, placed=placed, taken=len(used))
        for each in nodes[:count]:
            each.has_come = True
        del nodes[:count]
        shares = self._take(gang, placed)
        largest_first = sorted(shares.items(), key=lambda each: (-each[1].gpus, each[0]))
        need = NeedsNodes(
            key=gang.key,
            uid=gang.uid,
            pool=offer.pool,
            zone=offer.zone,
            nodes=count,
            shares=tuple(share for _, share in largest_first),
        )
        return GangStart(placed=placed, shares=shares, need=need)

    def _with_fewest(
        self, gang: Gang, *, offer: NodeOffer, placed: Placed, taken: int
    ) -> tuple[Placed, int]:
        """Return the places with the fewest new nodes, and their number.

        Usually the pods take as few nodes as they can. Then one node less is too few, and that is
        tried first. Otherwise the number is bisected. A costly gang has fewer tries, and may get
        more nodes than the fewest. So may any gang when the time of the cycle is over.

        Args:
            gang: the gang.
            offer: the kind of the new nodes.
            placed: its places.
            taken: number of new nodes that it takes of those it could have.
        """
        nodes, size, best = self._of_offer[offer.pool, offer.zone], len(placed.assignment), taken
        if not taken or self._is_late(f"fewest {gang.uid}"):
            return placed, taken
        tries = max(_LEAST_TRIES, _TRY_UNITS // cost_of(gang))

        def starts(count: int) -> bool:
            nonlocal placed, best, tries
            if tries <= 0 or self._is_late(f"fewest {gang.uid} {count}"):
                tries = 0
                return False
            tries -= 1
            fewer = self._placed(gang, more=nodes[:count])
            if fewer is None or len(fewer.assignment) < size:
                return False
            placed, best = fewer, count
            return True

        # Below this number it can only start in another pool, without any new node.
        lacks = self._shortages(gang, pods=size)
        low = lacks[offer.pool].new_nodes(offer)
        is_enough = low >= taken or not starts(taken - 1)
        if any(each.is_none for each in lacks.values()) and starts(0):
            return placed, best
        if is_enough:
            return placed, best
        # It takes more nodes than it needs. It may need no more than its resources say.
        low = max(1, low)
        if low < best and starts(low):
            return placed, best
        low += 1
        while low < best and tries > 0:
            middle = (low + best) // 2
            if not starts(middle):
                low = middle + 1
        return placed, best

    def _least(self, gang: Gang, *, offer: NodeOffer) -> int:
        """Return a number of new nodes below which a gang cannot start. 0: it may need none."""
        lacks = self._shortages(gang, pods=gang.legal_sizes[0] + gang.extras)
        if any(each.is_none for each in lacks.values()):
            return 0
        return lacks[offer.pool].new_nodes(offer)

    def _shortages(self, gang: Gang, *, pods: int) -> Mapping[str, _Shortage]:
        """Return what a gang lacks in each pool beside the free resources there. O(nodes).

        Args:
            gang: the gang.
            pods: number of all its pods.
        """
        # Several offers are in one zone, and zones differ in the gang's selector alone.
        question = (gang.uid, gang.selector.get(ZONE_LABEL), pods)
        if question in self._lacking:
            return self._lacking[question]
        kinds = [(gang.per_pod, pods - gang.extras)]
        kinds += [(role.per_pod, role.pods) for role in gang.roles]
        if gang.uid in self._broken:
            kinds = [(request, 0) for request, _ in kinds]  # some pods have their places already
        lacks = {pool.name: _Shortage.of(kinds) for pool in self._snapshot.pools}
        # Nodes without enough GPUs for the smallest pod hold none of them. Most nodes are such.
        node_filter, gpus = node_filter_of(gang), min(request.gpus for request, _ in kinds)
        room = Counter(
            (node.pool, self._free_on(node))
            for node in self._there()
            if node.allocatable.gpus - node.used.gpus >= gpus
            and node_filter.ineligibility(node) is None
        )
        for (pool, amounts), count in room.items():
            if pool in lacks:
                lacks[pool].take(amounts.amounts(), nodes=count)
        self._lacking[question] = lacks
        return lacks

    def free_on(self, names: Collection[str]) -> dict[str, Resources]:
        """Return the free resources of these nodes, after pods that are being deleted are gone."""
        return {node.name: self._free_on(node) for node in self._there() if node.name in names}

    def _free_on(self, node: Node) -> Resources:
        free = node.allocatable - node.used
        taken = self._taken.get(node.name)
        return free if taken is None else free - taken

    def _there(self) -> Iterator[Node]:
        """Yield the nodes that are there, and the new ones that have come."""
        yield from self._snapshot.nodes
        yield from (each.new.node for each in self._coming if each.has_come)

    def _occupy(self, shares: Mapping[str, Resources]) -> None:
        """Take resources of nodes."""
        self._lacking.clear()
        for name, share in shares.items():
            before = self._taken.get(name)
            self._taken[name] = share if before is None else before + share

    def _placed(self, gang: Gang, *, more: Collection[_ComingNode] = ()) -> Placed | None:
        """Return the places of a gang if more nodes had come; None if it does not fit."""
        broken = self._broken.get(gang.uid)
        for each in more:
            each.has_come = True
        world = replace(self._snapshot, nodes=(*self._snapshot.nodes, *self._all_coming()))
        for each in more:
            each.has_come = False
        # Only the gang in question counts as broken, so that no other gang is repaired.
        if broken is not None:
            unbroken = (held for held in world.admitted if held.gang.uid != gang.uid)
            world = replace(world, admitted=(*unbroken, broken))
        pending = () if broken is not None else (gang,)
        cycle = replace(bare_cycle(world, pending, now=self._now), only_starts=True)
        decisions = self._decide(cycle)
        return next((placed for placed in decisions.placed if placed.uid == gang.uid), None)

    def _all_coming(self) -> Iterator[Node]:
        return (each.now for each in self._coming)

    def _take(self, gang: Gang, placed: Placed) -> Mapping[str, Resources]:
        """Give a gang its places, and return what its new pods request, by node."""
        before = tuple(held for held in self._snapshot.admitted if held.gang.uid != gang.uid)
        held = self._broken.pop(gang.uid, None)
        whole = (
            _promised(gang, pool=placed.pool, assignment=placed.assignment)
            if held is None
            else replace(
                held,
                assignment=placed.assignment,
                lost=frozenset(),
                reserved=held.reserved | held.lost,
                preemptible=False,
            )
        )
        self._snapshot = replace(self._snapshot, admitted=(*before, whole))
        positions = placed.replaced or range(len(placed.assignment))
        shares = _shares_at(gang, names=placed.assignment, positions=positions)
        self._occupy(shares)
        return shares


def _slots(request: Mapping[str, int], *, free: Mapping[str, int]) -> int:
    """Return how many pods with a request fit into these amounts; 0 without a request."""
    fitting = (max(0, free.get(name, 0)) // amount for name, amount in request.items())
    return min(fitting, default=0)


def _within_zone(gang: Gang, offer: NodeOffer) -> Gang:
    # A selector on the zone label keeps the gang in the zone of the new nodes.
    zone = offer.node.labels.get(ZONE_LABEL)
    if not offer.zone or zone is None:
        return gang
    return replace(gang, selector={**gang.selector, ZONE_LABEL: zone})


def settled(snapshot: Snapshot, *, gangs: Mapping[str, Gang], decisions: Decisions) -> Snapshot:
    """Return the cluster after a cycle, in which no gang may be preempted, repaired or moved.

    Victims keep their places beside those of their preemptors. So capacity is too low for a minute,
    but never too high. Resources of pods that are being deleted are free, unless they are overdue.

    Args:
        snapshot: the cluster before the cycle.
        gangs: waiting gangs by uid.
        decisions: decisions of the cycle.
    """
    held = {each.gang.uid: _with_nominated(each) for each in snapshot.admitted}
    known = (*gangs.values(), *(each.gang for each in snapshot.admitted))
    surplus = {gang.surplus.uid: gang.surplus for gang in known if gang.surplus is not None}
    # 1. Gangs that start, and positions that are repaired.
    for placed in decisions.placed:
        before = held.get(placed.uid)
        if before is None:
            gang = surplus.get(placed.uid) or gangs[placed.uid]
            held[placed.uid] = _promised(gang, pool=placed.pool, assignment=placed.assignment)
        else:
            held[placed.uid] = replace(
                before,
                assignment=placed.assignment,
                lost=frozenset(),
                reserved=before.reserved | frozenset(placed.replaced),
            )
    # 2. Gangs that wait for their victims hold their nominated places already.
    for gang, pool, assignment in _nominated(gangs, decisions.preemptions):
        if gang.uid not in held:
            held[gang.uid] = _promised(gang, pool=pool, assignment=assignment)
    return replace(
        snapshot,
        offers=(),
        asked=(),
        nodes=tuple(map(_without_terminating, snapshot.nodes)),
        admitted=tuple(_frozen(each) for each in held.values()),
    )


def _without_terminating(node: Node) -> Node:
    if node.terminating == NOTHING:
        return node
    return replace(node, used=node.used - node.ending, terminating=NOTHING, overdue=NOTHING)


def _nominated(
    gangs: Mapping[str, Gang], preemptions: Iterable[Preemption]
) -> Iterator[tuple[Gang, str, tuple[str, ...]]]:
    """Yield gangs that wait for their victims to leave, and the places kept for them."""
    for preemption in preemptions:
        if preemption.uid in gangs:
            yield gangs[preemption.uid], preemption.pool, preemption.assignment
    for gang in gangs.values():
        if gang.nominated:
            yield gang, gang.nominated_pool, gang.nominated


def _promised(gang: Gang, *, pool: str, assignment: tuple[str, ...]) -> Admitted:
    return Admitted(
        gang=replace(gang, nominated=(), nominated_pool="") if gang.nominated else gang,
        pool=pool,
        assignment=assignment,
        # Its pods do not exist yet, so all positions are reserved.
        reserved=frozenset(range(len(assignment))),
        preemptible=False,
    )


def _with_nominated(held: Admitted) -> Admitted:
    """Return a broken gang with the places that are kept for its repair."""
    if not held.nominated or held.leaving:
        return held
    places = (held.nominated.get(i, name) for i, name in enumerate(held.assignment))
    return replace(
        held,
        assignment=tuple(places),
        lost=frozenset(),
        reserved=held.reserved | held.nominated.keys(),
        nominated={},
    )


def _frozen(held: Admitted) -> Admitted:
    """Return a running gang that is not a victim, and not repaired or moved itself."""
    if held.lost or held.displaced or held.preemptible:
        leaving = held.leaving or bool(held.lost)
        return replace(held, preemptible=False, leaving=leaving, displaced=frozenset())
    return held


def _shares_at(
    gang: Gang, *, names: Sequence[str], positions: Sequence[int]
) -> dict[str, Resources]:
    """Return the resources that pods of a gang request, by node. There may be ten thousand.

    Args:
        gang: the gang.
        names: node of each position.
        positions: positions of the pods, ascending.
    """
    shares: dict[str, Resources] = {}
    for request, among in _by_request(gang, positions):
        of_count: dict[int, Resources] = {}
        for name, pods in Counter(map(names.__getitem__, among)).items():
            share = of_count.get(pods)
            if share is None:
                share = of_count[pods] = request.times(pods)
            shares[name] = shares[name] + share if name in shares else share
    return shares


def _by_request(gang: Gang, positions: Sequence[int]) -> Iterator[tuple[Resources, Sequence[int]]]:
    """Yield ascending positions by what their pods request."""
    start, last = 0, 0
    for role in gang.roles:
        last += role.pods
        stop = bisect_left(positions, last, start)
        yield role.per_pod, positions[start:stop]
        start = stop
    yield gang.per_pod, positions[start:]
