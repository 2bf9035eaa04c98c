"""Why a gang that its quota allows finds no places: the first of these that is true.

1. ExceedsCluster: not even the empty pool could hold it, with every node in service.
2. NodesUnavailable: the empty pool could, but not on the nodes that are open to this gang.
3. TopologyDoesNotFit: the pool has room now, but no single domain of the required level.
4. InsufficientResources: GPUs would suffice, something else does not.
5. InsufficientGpus.

From 3 on, somebody's leaving helps. The domain to speak of is the one with the most room now among
those that could hold the gang if they were empty; the blockers are found by imagining its holders
gone, lowest priority and biggest first, and keeping those whose leaving was necessary.
O(nodes + holders of the pool), once per shape and cycle.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from drumline.scheduling.blockers import who_has_to_leave
from drumline.scheduling.decisions import BlockReason
from drumline.scheduling.eligibility import Closed
from drumline.scheduling.model import Gang, Node
from drumline.scheduling.refusals import (
    Refusal,
    amount,
    counted,
    named,
    request_text,
)
from drumline.scheduling.search import Search
from drumline.scheduling.slots import domain_slots


def needs(search: Search) -> str:
    """The head of every message: what is asked for, and how near together."""
    where = f"one {search.level}" if search.depth else f"pool {search.view.tree.pool.name}"
    beside = " beside its other pods" if search.demand.beside and search.depth else ""
    return f"needs {request_text(gang=search.gang, pods=search.demand.pods)} in {where}{beside}"


def _refuse(*, search: Search, reason: BlockReason, tail: str, available: int) -> Refusal:
    """A refusal about GPUs (about pods, where the gang asks for no GPU)."""
    each = search.gang.per_pod.gpus
    return Refusal(
        reason=reason,
        message=f"{needs(search)}; {tail}",
        resource="gpus" if each else "pods",
        needed=search.demand.pods * (each or 1),
        available=available,
    )


def never_fits(search: Search) -> Refusal | None:
    """The refusal of what could not even be placed in the empty pool. O(nodes)."""
    slots = search.emptied(everywhere=True)
    best = max(search.ids, key=lambda i: (slots[i], -i), default=None)
    if best is not None and slots[best] >= search.demand.pods:
        return None
    room = 0 if best is None else slots[best]
    name = search.domain(best).name if best is not None else ""
    such = counted(room, "such pod")
    if search.demand.beside:
        tail = f"{name or 'it'} has room for {such} even with nobody else in it"
    elif room:
        tail = f"{f'the largest, {name},' if name else 'it'} has room for {such} even when empty"
    else:
        tail = f"no node there can hold such a pod ({_pod_text(search.gang)}), even when empty"
    return _refuse(
        search=search,
        reason=BlockReason.EXCEEDS_CLUSTER,
        tail=f"{tail}: ask for less or add nodes",
        available=room * (search.gang.per_pod.gpus or 1),
    )


def why_blocked(search: Search) -> Refusal:
    """The refusal of what has no places now, though its quota has room."""
    never = never_fits(search)
    if never is not None:
        return never
    emptied = search.emptied(everywhere=False)
    roomy = [i for i in search.ids if emptied[i] >= search.demand.pods]
    if not roomy:
        return _unavailable(search=search, slots=emptied)
    if search.depth and search.index.slots[0][0] >= search.demand.pods:
        return _occupied(search=search, ids=roomy, reason=BlockReason.TOPOLOGY_DOES_NOT_FIT)
    enough_gpus = [i for i in roomy if _gpu_slots(search=search)[i] >= search.demand.pods]
    if enough_gpus:
        return _occupied(search=search, ids=enough_gpus, reason=BlockReason.INSUFFICIENT_RESOURCES)
    return _occupied(search=search, ids=roomy, reason=BlockReason.INSUFFICIENT_GPUS)


def _gpu_slots(*, search: Search) -> list[int]:
    """Slots by domain if only GPUs (and where none are asked for, nothing) were scarce."""
    gpus, *others = search.shape.request
    if not gpus:
        return [search.demand.pods] * len(search.view.tree.domains[search.depth])
    shape = replace(search.shape, request=(gpus, *(0 for _ in others)))
    return domain_slots(
        view=search.view,
        shape=shape,
        amounts=search.view.free,
        depth=search.depth,
        everywhere=False,
    )


def _unavailable(*, search: Search, slots: list[int]) -> Refusal:
    nodes = search.view.tree.nodes
    closed = Counter(filter(None, (_closed_text(search=search, node=node) for node in nodes)))
    reasons = ", ".join(f"{count} {why}" for why, count in sorted(closed.items()))
    room = max((slots[i] for i in search.ids), default=0)
    where = f"the best {search.level}" if search.depth else "the rest"
    return _refuse(
        search=search,
        reason=BlockReason.NODES_UNAVAILABLE,
        tail=f"{closed.total()} of {counted(len(nodes), 'node')} cannot be used ({reasons});"
        f" {where} has room for {counted(room, 'such pod')} when empty",
        available=room * (search.gang.per_pod.gpus or 1),
    )


def _closed_text(*, search: Search, node: Node) -> str | None:
    why = search.shape.admission.refusal(node)
    return f"{why}: {node.closed}" if why is Closed.DISRUPTED else why


def _occupied(*, search: Search, ids: list[int], reason: BlockReason) -> Refusal:
    slots, gpus = search.index.slots[search.depth], search.index.gpus[search.depth]
    best = max(ids, key=lambda i: (slots[i], gpus[i], -i))
    scarce = 0
    if reason is BlockReason.INSUFFICIENT_RESOURCES or not search.gang.per_pod.gpus:
        scarce = _scarcest(search=search, identity=best)
    free = _total(search=search, identity=best, amounts=search.view.free, resource=scarce)
    whole = _total(search=search, identity=best, amounts=search.view.capacity, resource=scarce)
    needed = search.demand.pods * search.shape.request[scarce]
    resource = search.view.axis.names[scarce]
    tail = f"{_free_text(resource=resource, free=free, whole=whole)} free"
    if search.depth:
        tail = f"the best {search.level}, {search.domain(best).name}, has {tail}"
    if free >= needed:
        tail += f" but room for {counted(slots[best], 'such pod')}"
    if reason is BlockReason.TOPOLOGY_DOES_NOT_FIT:
        tail += f" (the whole pool has room for {counted(search.index.slots[0][0], 'such pod')})"
    blockers = who_has_to_leave(
        view=search.view,
        index=search.index,
        own=search.gang.uid,
        domain=search.domain(best),
        fits=lambda: search.holds(best),
    )
    held = [blocker.text(scarce) for blocker in blockers]
    head = needs(search)
    if resource not in ("gpus", "pods"):
        head += f" and {amount(resource=resource, count=needed)}"
    return Refusal(
        reason=reason,
        message=f"{head}; {tail}; {named(held)}",
        blockers=tuple(key for blocker in blockers for key in blocker.keys),
        resource=resource,
        needed=needed,
        available=free,
    )


def _total(*, search: Search, identity: int, amounts: list[tuple[int, ...]], resource: int) -> int:
    domain = search.domain(identity)
    inside = range(domain.start, domain.stop)
    return sum(max(0, amounts[i][resource]) for i in inside if search.index.open[i])


def _scarcest(*, search: Search, identity: int) -> int:
    """The requested resource that, taken alone, has room for the fewest pods."""
    domain = search.domain(identity)
    inside = [i for i in range(domain.start, domain.stop) if search.index.open[i]]

    def rooms(resource: int) -> int:
        need = search.shape.request[resource]
        return sum(max(0, search.view.free[i][resource]) // need for i in inside)

    requested = [r for r, need in enumerate(search.shape.request) if need]
    return min(requested, key=lambda r: (rooms(r), r))


def _free_text(*, resource: str, free: int, whole: int) -> str:
    """`2 of 4` GPUs, `0 of 110 pod slots`, `4 of 64 CPU`: the unit stands once."""
    if resource == "gpus":
        return f"{free} of {whole}"
    number = amount(resource=resource, count=free).partition(" ")[0]
    return f"{number} of {amount(resource=resource, count=whole)}"


def _pod_text(gang: Gang) -> str:
    return ", ".join(
        amount(resource=name, count=count)
        for name, count in gang.per_pod.amounts().items()
        if name != "pods"
    )
