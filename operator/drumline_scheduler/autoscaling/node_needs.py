"""Find the waiting gangs that would start with more nodes, and the fewest nodes they need.

Nothing is estimated. The cycle itself decides on a cluster with n more empty nodes of an offer
(`NodeOffer`). So quota, priority, topology, taints and affinity limit requests for nodes just as
they limit starts. A gang over its quota requests no nodes.

1. Promises, before the cycle. Gangs with open requests take their places on a copy of the cluster
   in which no gang is preempted, repaired or moved. They use free nodes, then the fewest new ones.
   These places are nominated for them, quota included. So no other gang takes the nodes one by one
   as they come. A new node that has not come yet is represented by a node full of ending pods.
2. The cycle. A gang with promised places starts in these or in any others.
3. Needs, after the cycle. Other gangs that wait for capacity do the same, one after the other. So
   two gangs never count on the same place, and a gang that fits beside an earlier one on its new
   nodes requests none. These gangs also count on free nodes. So no elastic or surplus gang may grow
   into them in the same cycle: the cycle itself does not reserve free nodes for a gang that is
   larger than the cluster.

More empty nodes never keep a gang from starting, so the fewest are found by bisection. It starts at
the top, because usually each pod takes a new node.

Example: a pool of 0 nodes, limit 6, nodes of 8 GPUs. A (4 pods of 8) needs 4 nodes. B (4 pods of 4)
needs 2. C (1 pod of 8) finds the limit reached and waits. Four nodes come: A gets them.

A node that is still being set up has no slots yet. It counts as one of the requested nodes, not in
addition to them.

A running gang whose nodes certainly go requests nodes before they are gone (`notices`).

If a gang does not fit beside pods that are being deleted, it requests nodes only after these are
gone. Otherwise an autoscaler that still sees them would add nodes for these places too. Overdue
pods (`Node.overdue`) count like any others.

Gangs of a group do not request nodes, and neither does the growth of elastic gangs.

Cost: two or three cycles with one pending gang for each of `MAX_GANGS` gangs. O(log nodes of the
gang) if it takes more nodes than it needs. The gangs with requests have a budget together
(`node_tries`), because each cycle finds their places again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Final

from drumline_scheduler.autoscaling.grown_cluster import (
    Decide,
    GangStart,
    GrownCluster,
    settled,
)
from drumline_scheduler.autoscaling.node_offers import (
    PoolSizes,
    limits_text,
    offers_by_cost,
    offers_for,
    requested_offer,
)
from drumline_scheduler.autoscaling.node_tries import MAX_TRIED, NodeTries, node_tries, units_of
from drumline_scheduler.autoscaling.notices import after_losses, noticed_gangs
from drumline_scheduler.autoscaling.useful_offers import HasQuota, UsefulOffers
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import (
    NEVER_FITS,
    Blocked,
    BlockReason,
    Decisions,
    NeedsNodes,
    Placed,
)
from drumline_scheduler.model import (
    Admitted,
    Gang,
    Node,
    NodeOffer,
    Snapshot,
    is_surplus,
    order_key,
)
from drumline_scheduler.offered_nodes import OfferedNode, OfferedNodes
from drumline_scheduler.queueing.equivalence_classes import EquivalenceClasses
from drumline_scheduler.rejections import bounded, counted, request_text
from drumline_scheduler.resources import NOTHING, Resources
from drumline_scheduler.work import CyclePart, begin, is_late, lateness

MAX_GANGS: Final = 8
"""Number of gangs, from the head of the line, that may request nodes at a time. Each costs some
cycles."""

_HELPED_BY_NODES: Final = NEVER_FITS | frozenset(
    {
        BlockReason.NODES_UNAVAILABLE,
        BlockReason.INSUFFICIENT_GPUS,
        BlockReason.INSUFFICIENT_RESOURCES,
        BlockReason.TOPOLOGY_DOES_NOT_FIT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    """A cluster in which gangs with open requests have their places nominated.

    Attributes:
        snapshot: snapshot for the cycle.
        pending: the pending gangs.
        needs: nodes that the gangs still need.
        coming: the new nodes as they will be.
    """

    snapshot: Snapshot
    pending: tuple[Gang, ...]
    needs: tuple[NeedsNodes, ...] = ()
    coming: tuple[Node, ...] = ()

    @property
    def with_places(self) -> frozenset[str]:
        """Uids of broken gangs with promised places. Without these they ask in a later cycle."""
        admitted = self.snapshot.admitted
        return frozenset(held.gang.uid for held in admitted if held.lost and held.nominated)


def promised(cycle: CycleInput, *, decide: Decide, nodes: OfferedNodes) -> Promised:
    """Nominate the places of the gangs with open requests for nodes.

    Args:
        cycle: arguments of the cycle.
        decide: decides a cycle on a hypothetical cluster.
        nodes: makes the new nodes.
    """
    snapshot, pending = cycle.snapshot, cycle.pending
    # 1. Broken, noticed and waiting gangs with open requests, as the cycle decides them.
    asked = {each.uid: each for each in snapshot.asked}
    gangs = {gang.uid: gang for gang in pending}
    broken = [held for held in snapshot.admitted if held.lost and not held.leaving]
    noticed = noticed_gangs(snapshot, policy=cycle.policy)
    parts = [held.gang for held in broken], [held.gang for held in noticed.values()], pending
    line = [
        gang
        for part in parts
        for gang in sorted((each for each in part if each.uid in asked), key=order_key)
        if _may_ask(gang)
    ]
    if not line:
        return Promised(snapshot=snapshot, pending=pending)
    # 2. Let them take their places, one after the other.
    has_limit = cycle.try_budget is not None
    if has_limit:
        begin(CyclePart.PROMISES)
    grown = GrownCluster(
        settled(
            after_losses(snapshot, noticed.keys() & asked.keys()),
            gangs=gangs,
            decisions=Decisions(),
        ),
        now=cycle.now,
        decide=decide,
        nodes=nodes,
        is_late=lateness(cycle.try_budget),
    )
    sizes = PoolSizes(node for node in snapshot.nodes if node.ready)
    needs: list[NeedsNodes] = []
    starts: dict[str, GangStart] = {}
    _provide_all(
        (requested_offer(asked[gang.uid], snapshot.offers, gang=gang) for gang in line[:MAX_GANGS]),
        sizes=sizes,
        grown=grown,
    )
    for gang in line[:MAX_GANGS]:
        for offer, most in requested_offer(asked[gang.uid], snapshot.offers, gang=gang):
            # Other gangs may have taken its nodes. As many again must not exceed the pool's limit.
            room = max(0, offer.pool_limit - sizes.without_starting(offer.pool))
            start = grown.start(gang, offer=offer, most=min(most, room), is_asked=True)
            if start is not None:
                starts[gang.uid] = start
                sizes.ask(offer.pool, start.need.nodes)
                needs += [start.need] if start.need.nodes else []
    if has_limit:
        begin(None)
    places = {uid: start.placed for uid, start in starts.items()}
    return Promised(
        # 3. Nominate these places, and show new nodes as full until they come.
        snapshot=replace(
            snapshot,
            nodes=(*snapshot.nodes, *_promised_nodes(grown.new, starts=starts.values())),
            admitted=tuple(
                _repaired_later(held, places.get(held.gang.uid)) for held in snapshot.admitted
            ),
        ),
        pending=tuple(_starts_later(gang, places.get(gang.uid)) for gang in pending),
        needs=tuple(needs),
        coming=tuple(each.node for each in grown.new),
    )


def with_node_needs(
    decisions: Decisions,
    *,
    cycle: CycleInput,
    promises: Promised,
    decide: Decide,
    nodes: OfferedNodes,
    has_quota: HasQuota,
) -> Decisions:
    """Return the decisions of a cycle with the nodes to request from autoscalers.

    Args:
        decisions: decisions about the existing nodes.
        cycle: arguments of the cycle, with the cluster without promises.
        promises: promises on which the cycle decided.
        decide: decides a cycle on a hypothetical cluster.
        nodes: makes the new nodes.
        has_quota: whether quota allows a gang some size beside the running gangs.
    """
    snapshot = cycle.snapshot
    # 1. Gangs that new nodes may help, and the needs of earlier requests.
    lacking = (held.gang for held in snapshot.admitted if held.vacant)
    running = {gang.uid: gang for gang in lacking}
    gangs = {**running, **{gang.uid: gang for gang in promises.pending}}
    started = {placed.uid for placed in decisions.placed}
    needs = {need.uid: need for need in promises.needs if need.uid not in started}
    noticed = noticed_gangs(promises.snapshot, policy=cycle.policy)
    line = _line(decisions, gangs=gangs, running=running, noticed=noticed)
    helped = needs.keys() | promises.with_places
    waiting = [gang for gang in line if gang.uid not in helped and _may_ask(gang)]
    sizes = PoolSizes(snapshot.nodes)
    for need in needs.values():
        sizes.ask(need.pool, need.nodes)
    # 2. Let these gangs take their places on a grown cluster.
    used = sum(units_of(gangs[need.uid], nodes=need.nodes) for need in needs.values())
    useful = UsefulOffers(snapshot, sizes=sizes, has_quota=has_quota) if waiting else None
    tries = _tries(waiting, cycle=cycle, useful=useful, used=used)
    put_off: list[str] = []
    if useful and tries.gangs and len(needs) < MAX_GANGS:
        lost = noticed.keys() & {gang.uid for gang in tries.gangs}
        seen = replace(promises, snapshot=after_losses(promises.snapshot, lost))
        world = _world_after(decisions, snapshot=snapshot, promises=seen, gangs=gangs)
        is_late = lateness(cycle.try_budget)
        grown = GrownCluster(world, now=cycle.now, decide=decide, nodes=nodes, is_late=is_late)
        timely = _timely(tries.gangs, is_late=is_late, put_off=put_off)
        offers = partial(_offers, useful=useful, snapshot=snapshot, sizes=sizes)
        more = _needs(timely, snapshot=snapshot, sizes=sizes, grown=grown, offers=offers)
        _provide_all(map(offers, tries.gangs), sizes=sizes, grown=grown)
        needs.update((need.uid, need) for need in islice(more, MAX_GANGS - len(needs)))
    # Put off: they are tried in a later cycle.
    taken = frozenset(decisions.deferred)
    waits = [*put_off, *tries.late] if len(needs) < MAX_GANGS else []
    # 3. Explain the answers: nodes are requested, or the pools may not grow.
    limits = {
        gang.uid: limits_text(gang, snapshot, sizes=sizes)
        for gang in waiting[:MAX_TRIED]
        if gang.uid not in needs
    }

    def explained(blocked: Blocked) -> Blocked:
        if blocked.uid in needs:
            need, gang = needs[blocked.uid], gangs[blocked.uid]
            return _waits_for_nodes(blocked, need=need, gang=gang, sizes=sizes)
        limit = limits.get(blocked.uid)
        return _with_limit(blocked, limit) if limit else blocked

    # 4. No growth into pools in which a new request counts on free nodes.
    asked = {each.uid for each in snapshot.asked}
    pools = {need.pool for need in needs.values() if need.uid not in asked}
    return replace(
        _without_growth(decisions, in_pools=pools, snapshot=snapshot),
        needs_nodes=tuple(needs.values()),
        deferred=(*decisions.deferred, *(uid for uid in waits if uid not in taken)),
        blocked=tuple(map(explained, decisions.blocked)),
    )


def _line(
    decisions: Decisions,
    *,
    gangs: Mapping[str, Gang],
    running: Collection[str],
    noticed: Mapping[str, Admitted],
) -> list[Gang]:
    """Return the gangs that new nodes may help, as the cycle decides them.

    Args:
        decisions: decisions of the cycle.
        gangs: waiting, broken and displaced gangs by uid.
        running: uids of the broken and displaced ones.
        noticed: gangs that may request nodes because their own go, by uid.
    """
    blocked = [gangs[each.uid] for each in decisions.blocked if each.reason in _HELPED_BY_NODES]
    # Noticed gangs that neither move nor leave in this cycle.
    goes = {each.uid for each in (*decisions.placed, *decisions.moves)}
    goes.update(victim.uid for each in decisions.preemptions for victim in each.victims)
    stays = sorted((held.gang for uid, held in noticed.items() if uid not in goes), key=order_key)
    return [
        *(gang for gang in blocked if gang.uid in running),
        *stays,
        *(gang for gang in blocked if gang.uid not in running),
    ]


def _world_after(
    decisions: Decisions, *, snapshot: Snapshot, promises: Promised, gangs: Mapping[str, Gang]
) -> Snapshot:
    """Return the cluster after the cycle, on which further gangs take their places."""
    pools = {offer.pool for offer in snapshot.offers}
    return settled(
        replace(promises.snapshot, nodes=(*snapshot.nodes, *promises.coming)),
        gangs=gangs,
        decisions=_without_growth(decisions, in_pools=pools, snapshot=snapshot),
    )


def _without_growth(
    decisions: Decisions, *, in_pools: Collection[str], snapshot: Snapshot
) -> Decisions:
    """Return the decisions without growth of whole gangs and starts of surplus; repairs stay."""
    if not in_pools:
        return decisions
    running = {held.gang.uid for held in snapshot.admitted}
    broken = {held.gang.uid for held in snapshot.admitted if held.lost}
    return replace(
        decisions,
        placed=tuple(
            each
            for each in decisions.placed
            if each.pool not in in_pools or each.uid in running or not is_surplus(each.uid)
        ),
        resized=tuple(
            each
            for each in decisions.resized
            if each.pool not in in_pools or each.uid in broken or not each.added
        ),
    )


def _with_limit(blocked: Blocked, limit: str) -> Blocked:
    """Return the answer with the reason why its pools are not asked for more nodes."""
    return replace(blocked, message=bounded(f"{blocked.message}; {limit}"))


def _may_ask(gang: Gang) -> bool:
    """Return whether a gang may request nodes. Gangs of a group and nominated gangs may not."""
    return not (gang.group or gang.nominated or gang.is_foreign)


def _tries(
    waiting: Sequence[Gang], *, cycle: CycleInput, useful: UsefulOffers | None, used: int
) -> NodeTries:
    """Return the gangs to try on more nodes in a cycle of which this part begins.

    Args:
        waiting: gangs that more nodes may help, in scheduling order.
        cycle: arguments of the cycle.
        useful: the offers that may help each gang. None: no gang waits.
        used: units of the gangs with open requests.
    """
    has_limit = cycle.try_budget is not None
    if has_limit:
        begin(CyclePart.NEEDS)
    if useful is None:
        return NodeTries()
    return node_tries(
        waiting,
        useful=useful,
        budget=cycle.try_budget,
        before=(*cycle.put_off, *cycle.deferred),
        used=used,
        is_late=has_limit and is_late("nodes"),
    )


def _timely(
    gangs: Sequence[Gang], *, is_late: Callable[[str], bool], put_off: list[str]
) -> Iterator[Gang]:
    """Yield the gangs that are tried within the time of the cycle.

    Args:
        gangs: the gangs to try. The first one is tried whatever the time.
        is_late: whether the time of the cycle is over at a place.
        put_off: the uids of the others are added.
    """
    for number, gang in enumerate(gangs):
        if number and is_late(f"nodes {gang.uid}"):
            put_off.append(gang.uid)
        else:
            yield gang


def _offers(
    gang: Gang, *, useful: UsefulOffers, snapshot: Snapshot, sizes: PoolSizes
) -> Iterator[tuple[NodeOffer, int]]:
    """Yield the offers to try for a gang, in this order, with the most nodes.

    Without any nodes, it may still start in the zone of the offer where pods end.

    Args:
        gang: the gang.
        useful: the offers that may help it.
        snapshot: the cluster with its offers.
        sizes: sizes of the pools, with nodes requested so far.
    """
    for offer, most in offers_for(gang, offers_by_cost(gang, snapshot), sizes=sizes):
        if useful.helps(offer, gang):
            yield offer, most
        elif useful.pods_end:
            yield offer, 0


def _needs(
    timely: Iterable[Gang],
    *,
    snapshot: Snapshot,
    sizes: PoolSizes,
    grown: GrownCluster,
    offers: Callable[[Gang], Iterator[tuple[NodeOffer, int]]],
) -> Iterator[NeedsNodes]:
    """Yield the nodes that gangs without earlier requests need, the first in line first.

    Args:
        timely: the gangs to try, for which the time of the cycle suffices.
        snapshot: the cluster with its offers.
        sizes: sizes of the pools; needed nodes are added.
        grown: the cluster on which the gangs take their places.
        offers: returns the offers to try for a gang, with the most nodes of each.
    """
    ends = {node.name: node.ending for node in snapshot.nodes if node.terminating != NOTHING}
    # One of equal gangs is tried. Others are as likely to start until further nodes come.
    classes = EquivalenceClasses(frozenset(queue.name for queue in snapshot.queues))
    failed: dict[int, int] = {}
    for gang in timely:
        number = classes.number_of(gang)
        if failed.get(number) == grown.came:
            continue
        # It fits beside earlier gangs on their new nodes, so it needs none of its own.
        if grown.takes_free_places(gang):
            continue
        # The first offer with which it starts. Generators: later offers are not tried.
        starts = (grown.start(gang, offer=offer, most=most) for offer, most in offers(gang))
        start = next(filter(None, starts), None)
        if start is None:
            failed[number] = grown.came
        if start is None or not start.need.nodes:
            continue
        if not _waits_for_pods(start, ends=ends, grown=grown):
            sizes.ask(start.need.pool, start.need.nodes)
            yield replace(start.need, pool_nodes=sizes.final(start.need.pool))


def _provide_all(
    tried: Iterable[Iterator[tuple[NodeOffer, int]]], *, sizes: PoolSizes, grown: GrownCluster
) -> None:
    """Make all nodes that the first offers of some gangs may add, at once.

    Args:
        tried: the offers of each gang, each with the most nodes.
        sizes: sizes of the pools, with nodes requested so far.
        grown: the cluster on which the gangs take their places.
    """
    wanted = Counter[tuple[str, str]]()
    offers: dict[tuple[str, str], NodeOffer] = {}
    for each in tried:
        for offer, most in islice(((offer, most) for offer, most in each if most), 1):
            place = (offer.pool, offer.zone)
            wanted[place] += most
            offers[place] = offer
    for place, offer in offers.items():
        room = max(0, offer.pool_limit - sizes.without_starting(offer.pool))
        grown.provide(offer, min(wanted[place], room))


def _waits_for_pods(
    start: GangStart, *, ends: Mapping[str, Resources], grown: GrownCluster
) -> bool:
    """Return whether a gang with its places does not fit beside the pods that end there.

    Args:
        start: the gang's start.
        ends: resources of ending pods, by node.
        grown: the cluster on which it has taken its places.
    """
    shares = {name: share for name, share in start.shares.items() if name in ends}
    left = grown.free_on(shares) if shares else {}
    return any(not share.fits_in(left[name] + share - ends[name]) for name, share in shares.items())


def _promised_nodes(
    coming: Iterable[OfferedNode], *, starts: Iterable[GangStart]
) -> Iterator[Node]:
    """Yield the nodes that are being set up, with all of their resources in use.

    The shares of the gangs that have places on a node count as terminating, so they become free.
    """
    free: defaultdict[str, Resources] = defaultdict(lambda: NOTHING)
    for start in starts:
        for name, share in start.shares.items():
            free[name] += share
    for each in coming:
        yield each.promised(free[each.node.name])


def _starts_later(gang: Gang, placed: Placed | None) -> Gang:
    if placed is None:
        return gang
    return replace(gang, nominated=placed.assignment, nominated_pool=placed.pool)


def _repaired_later(held: Admitted, placed: Placed | None) -> Admitted:
    if placed is None:
        return held
    return replace(
        held, nominated={position: placed.assignment[position] for position in placed.replaced}
    )


def _waits_for_nodes(
    blocked: Blocked, *, need: NeedsNodes, gang: Gang, sizes: PoolSizes
) -> Blocked:
    starting = sizes.starting(need.pool)
    come = f"; {counted(starting, 'node')} of it {'is' if starting == 1 else 'are'} being set up"
    where = f"pool {need.pool}" + (f" in {need.zone}" if need.zone else "")
    return replace(
        blocked,
        reason=BlockReason.WAITING_FOR_NODES,
        message=bounded(
            f"needs {request_text(gang=gang, pods=gang.nodes)}; starts with"
            f" {counted(need.nodes, 'more node')} of {where}, requested from the"
            f" autoscaler{come if starting else ''}"
        ),
        blockers=(),
        resource="nodes",
        needed=need.nodes,
        available=0,
        remedy=None,
    )
