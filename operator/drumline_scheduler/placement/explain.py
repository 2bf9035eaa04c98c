"""Why a gang that has its quota finds no nodes: the first of these reasons that applies.

1. PoolWithoutNodes, ResourceNotOffered, LevelLabelMissing, ExceedsCluster: not even the empty pool
   could hold it, with every node in service. The first three name a mistake of the installation.
2. NodesUnavailable: the empty pool could, but not on the nodes that are eligible for this gang.
3. TopologyDoesNotFit: the pool has room now, but no single domain of the required level, or not in
   whole slices.
4. InsufficientResources: GPUs would suffice, another resource does not.
5. InsufficientGpus.

From 3 on, other gangs' ends help. The message is about the domain with the most room now among
those that could hold the gang if they were empty, and names its blockers (`blockers`).
O(nodes + allocations of the pool), once per shape and cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import compress
from typing import Final

from drumline_scheduler.decisions import BlockReason, Remedy, RemedyKind
from drumline_scheduler.model import Gang
from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.placement.blockers import MOST_CANDIDATES, find_blockers, hanging_pods
from drumline_scheduler.placement.eligibility import Ineligibility
from drumline_scheduler.placement.pool_problems import (
    larger_than_any_node,
    no_nodes,
    nodes_lack_label,
    nodes_offer_none,
)
from drumline_scheduler.placement.remedies import remedy_for
from drumline_scheduler.placement.search import Search, is_exact
from drumline_scheduler.placement.what_if import (
    capacity_if_empty,
    fits_without_topology,
    roomy_for_gpus_alone,
)
from drumline_scheduler.rejections import Rejection, counted, named, request_text
from drumline_scheduler.resources import PLAIN_RESOURCES, amount
from drumline_scheduler.undo import CutShortError

_PODS: Final = PLAIN_RESOURCES.index("pods")


def needs(search: Search) -> str:
    """Return the head of every message: the request and its topology."""
    where = f"one {search.level}" if search.depth else f"pool {search.view.tree.pool.name}"
    beside = " beside its other pods" if search.demand.beside and search.depth else ""
    return f"needs {asked_for(search)} in {where}{beside}"


def asked_for(search: Search) -> str:
    """Return the request as text: `5 GPUs (1 launcher of 1, 2 pods of 2, every 2 in one rack)`."""
    gang, pods, roles = search.gang, search.vacant, search.demand.roles
    slices = [f"every {piece.pods} in one {piece.level}" for piece in gang.slices if piece.required]
    if not any(roles):
        text = request_text(gang=gang, pods=pods)
        return f"{text}, {', '.join(slices)}," if slices else text
    parts = [
        f"{count} {role.name} of {role.per_pod.gpus}"
        for role, count in zip(gang.roles, roles, strict=True)
        if count
    ]
    if pods:
        parts += [f"{counted(pods, 'pod')} of {gang.per_pod.gpus}", *slices]
    return f"{counted(search.total[0], 'GPU')} ({', '.join(parts)})"


def _reject(
    *, search: Search, reason: BlockReason, tail: str, room: int, helps: Callable[[], bool]
) -> Rejection:
    """Return a rejection about GPUs, or about pods if the gang requests no GPU."""
    gpus, each = search.total[0], search.gang.per_pod.gpus
    return Rejection(
        reason=reason,
        message=f"{needs(search)}; {tail}",
        resource="gpus" if gpus else "pods",
        needed=gpus or search.total[_PODS],
        available=room * (each or 1),
        remedy=remedy_for(search, away=reason is BlockReason.NODES_UNAVAILABLE)
        if helps()
        else None,
    )


def never_fits(search: Search) -> Rejection | None:
    """Return the rejection, without a remedy, of a gang that does not fit into the empty pool.

    None: it fits. O(nodes).
    """
    rejection = _infeasible(search, helps=lambda: False)
    return None if rejection is None else _noting_inexact(search, rejection)


def _infeasible(search: Search, *, helps: Callable[[], bool]) -> Rejection | None:
    # The largest domain of the empty pool decides. Ties go to the lowest id, so messages are
    # stable.
    most = search.most(capacity_if_empty(search, all_nodes=True))
    ids = search.ids
    best = _most_of(ids, most) if ids else None
    if best is not None and most[best] >= search.demand.pods:
        return None
    room = 0 if best is None else max(0, most[best])
    name = search.domain(best).name if best is not None else ""
    such = _pods_text(search, room)
    if (problem := _pool_problem(search, most=most)) is not None:
        reason, text = problem
        return _reject(search=search, reason=reason, tail=text, room=room, helps=helps)
    # The tail names the most specific limit: own pods, size of the domain, combination of pods,
    # node.
    if search.demand.beside:
        tail = f"{name or 'it'} has room for {such} even without other jobs"
    elif room:
        tail = f"{f'the largest, {name},' if name else 'it'} has room for {such} even when empty"
    elif any(search.demand.roles) or search.demand.slice_levels:
        tail = f"{name or 'it'} cannot hold {_smallest_text(search)} even when empty"
    else:
        tail = f"no node there can hold such a pod ({_pod_text(search.gang)}), even when empty"
    advice = ": request less or add nodes. See the nodes with drumline nodes"
    if hidden := _hidden_gpus(search):
        advice = f"; {hidden}"
    return _reject(
        search=search,
        reason=BlockReason.EXCEEDS_CLUSTER,
        tail=f"{tail}{advice}",
        room=room,
        helps=helps,
    )


def _hidden_gpus(search: Search) -> str:
    """Return that nodes have GPUs which no resource counts, or empty text."""
    hidden = sum(node.hides_gpus for node in search.view.tree.nodes)
    nodes = counted(hidden, "node")
    return f"GPUs of {nodes} exist only as DRA devices, which do not count" if hidden else ""


def _pool_problem(search: Search, *, most: Sequence[int]) -> tuple[BlockReason, str] | None:
    """Return the cause if it is a mistake of the pool, or one pod that is larger than any node."""
    tree = search.view.tree
    pool, names = tree.pool, search.view.axis.names
    if not tree.nodes:
        return BlockReason.POOL_WITHOUT_NODES, no_nodes(pool=pool.name, selector=pool.selector)
    requests = [search.shape.request] if search.demand.pods else []
    roles = zip(search.capacity.requests, search.demand.roles, strict=True)
    requests += [request for request, pods in roles if pods]
    asked = list(map(max, zip(*requests, strict=True)))
    distinct = search.view.distinct(search.view.capacity)
    distinct.catch_up()
    largest = list(map(max, zip(*distinct.distinct, strict=True)))
    # The parts of a GPU are named before the GPUs that they are parts of.
    for place in sorted(range(len(asked)), key=lambda i: names[i] not in pool.partitions):
        name = names[place]
        is_device = name == "gpus" or name not in PLAIN_RESOURCES
        if asked[place] and is_device and (text := _not_offered(search, place, most=most)):
            return BlockReason.RESOURCE_NOT_OFFERED, text
        if asked[place] > largest[place]:
            capacity = search.view.capacity
            best = next(i for i, each in enumerate(capacity) if each[place] == largest[place])
            text = larger_than_any_node(
                pool=pool.name,
                asked=amount(resource=name, count=asked[place]),
                most=amount(resource=name, count=max(0, largest[place])),
                node=tree.nodes[best].name,
                resource=(pool.gpu_resource or "gpus") if name == "gpus" else name,
            )
            return BlockReason.EXCEEDS_CLUSTER, text
    text = _missing_label(search, most=most)
    return None if text is None else (BlockReason.LEVEL_LABEL_MISSING, text)


def _not_offered(search: Search, place: int, *, most: Sequence[int]) -> str | None:
    """Return that nodes offer none of a device, if all the gang's pods would fit otherwise."""
    tree, capacity = search.view.tree, search.view.capacity
    lacking = [i for i, amounts in enumerate(capacity) if amounts[place] <= 0]
    if not lacking:
        return None
    if len(lacking) < len(capacity):
        each = max(map(search.shape.slots_in, search.view.distinct(capacity).distinct))
        inside = Counter(tree.domain_of[search.depth][i] for i in lacking)
        if not any(most[i] + each * inside[i] >= search.demand.pods for i in search.ids):
            return None
    pool, name = tree.pool, search.view.axis.names[place] or _unoffered(search)
    if name == "gpus" and (hidden := _hidden_gpus(search)):
        return hidden
    return nodes_offer_none(
        pool=pool.name,
        nodes=[tree.nodes[i].name for i in lacking],
        count=len(capacity),
        resource=(pool.gpu_resource or "GPUs") if name == "gpus" else name,
        driver=pool.device_driver if name == "gpus" else "",
    )


def _unoffered(search: Search) -> str:
    """Return the first requested resource that no node of the cluster offers."""
    known, gang = search.view.axis.names, search.gang
    requests = (gang.per_pod, *(role.per_pod for role in gang.roles))
    names = {name for request in requests for name, _ in request.extended if name not in known}
    return min(names, default="such resource")


def _missing_label(search: Search, *, most: Sequence[int]) -> str | None:
    """Return that nodes lack a level's label, if they could hold the gang with it."""
    tree, shape = search.view.tree, search.shape
    room = max((most[i] for i in search.ids), default=0)
    slices = (level.depth for level in search.demand.slice_levels)
    for depth in sorted({search.depth, *slices, *shape.grain_depths} - {0}):
        known, domain_of = tree.known[depth], tree.domain_of[depth]
        lacking = [i for i in range(len(tree.nodes)) if not known[domain_of[i]]]
        slots = sum(shape.slots_in(search.view.capacity[i]) for i in lacking)
        if lacking and room + slots >= search.demand.pods:
            labels = tree.pool.level_labels
            return nodes_lack_label(
                pool=tree.pool.name,
                nodes=[tree.nodes[i].name for i in lacking],
                count=len(tree.nodes),
                level=tree.pool.levels[depth - 1],
                label=labels[depth - 1] if labels else "",
            )
    return None


def why_blocked(
    search: Search,
    *,
    names: Callable[[int], bool],
    helps: Callable[[], bool],
    fits_empty: bool = False,
) -> Rejection:
    """Return the rejection of a gang that has its quota and finds no nodes now.

    Args:
        search: the search that failed.
        names: returns whether to continue the search for blockers. It gets the number of tries.
        helps: returns whether to search for a remedy. It is asked if nodes are missing.
        fits_empty: True if it is known that the empty pool could hold the gang.
    """
    # The eligible nodes come first: if they could hold the gang, all nodes need no count.
    emptied = search.most(capacity_if_empty(search, all_nodes=False))
    roomy = [i for i in search.ids if emptied[i] >= search.demand.pods]
    never = None if fits_empty or roomy else _infeasible(search, helps=helps)
    rejection = never or _blocked(
        search,
        emptied=emptied,
        roomy=roomy,
        names=lambda tries: is_exact(search) and names(tries),
        helps=helps,
    )
    return _noting_inexact(search, rejection)


def _noting_inexact(search: Search, rejection: Rejection) -> Rejection:
    """Extend the message of a rejection whose search was not exact."""
    if is_exact(search):
        return rejection
    pods = counted(sum(search.demand.roles), "role pod")
    return replace(
        rejection,
        message=f"{rejection.message}; placed one role after another, as an exact search was not"
        f" tried: too many kinds of pods ({pods} of {len(search.demand.roles)} roles)",
    )


def _blocked(
    search: Search,
    *,
    emptied: Sequence[int],
    roomy: Sequence[int],
    names: Callable[[int], bool],
    helps: Callable[[], bool],
) -> Rejection:
    """Return the rejection of a gang that the empty pool could hold.

    Args:
        search: the search that failed.
        emptied: pods that each domain could hold on its eligible nodes without other gangs.
        roomy: the domains that could hold the gang so.
        names: returns whether to continue the search for blockers. It gets the number of tries.
        helps: returns whether to search for a remedy.
    """
    if not roomy or _has_ineligible_node(search):
        return _unavailable(search=search, most=emptied, helps=helps)
    # Other gangs hold the capacity. Ask what is short now: topology, another resource, or GPUs.
    if fits_without_topology(search):
        return _occupied(
            search=search, ids=roomy, reason=BlockReason.TOPOLOGY_DOES_NOT_FIT, names=names
        )
    enough = roomy_for_gpus_alone(search, roomy)
    if enough:
        return _occupied(
            search=search, ids=enough, reason=BlockReason.INSUFFICIENT_RESOURCES, names=names
        )
    return _occupied(search=search, ids=roomy, reason=BlockReason.INSUFFICIENT_GPUS, names=names)


def _unavailable(*, search: Search, most: Sequence[int], helps: Callable[[], bool]) -> Rejection:
    nodes, closed = search.view.tree.nodes, _closed_nodes(search)
    reasons = ", ".join(f"{count} {why}" for why, count in sorted(closed.items()))
    apart = search.shape.node_filter.volumes_apart(nodes)
    if apart:
        reasons += f"; no node reaches all of them: {', '.join(apart)}"
    room = max((max(0, most[i]) for i in search.ids), default=0)
    where = f"the best {search.level}" if search.depth else "the rest"
    return _reject(
        search=search,
        reason=BlockReason.NODES_UNAVAILABLE,
        tail=f"{closed.total()} of {counted(len(nodes), 'node')} cannot be used ({reasons});"
        f" {where} has room for {_pods_text(search, room)} when empty",
        room=room,
        helps=helps,
    )


def _has_ineligible_node(search: Search) -> bool:
    """Return whether a pod must go to a certain node that the gang may not use."""
    return not all(search.index.eligible[ordinal] for ordinal, _ in search.variants[-1].fixed)


def _closed_nodes(search: Search) -> Counter[str]:
    """Return how many nodes the gang may not use, by the reason in a message."""
    index, tree = search.index, search.view.tree
    # Nodes in service with unsuitable labels are counted as bits of a number.
    plain, labels = tree.in_service, index.labelled
    for name in search.shape.node_filter.excluded & search.view.ordinal_of.keys():
        plain &= ~(1 << search.view.ordinal_of[name])
    unselected, far = plain & ~labels.selected, plain & labels.selected & ~labels.near
    closed = Counter[str](
        {Ineligibility.SELECTOR: unselected.bit_count(), Ineligibility.AFFINITY: far.bit_count()}
    )
    seen = unselected | far
    rest = (i for i, usable in enumerate(index.eligible) if not usable and not seen >> i & 1)
    closed.update(filter(None, (_closed_text(search=search, ordinal=i) for i in rest)))
    return +closed


def _closed_text(*, search: Search, ordinal: int) -> str | None:
    node, why = search.view.tree.nodes[ordinal], search.index.ineligibility(ordinal)
    if why is Ineligibility.VOLUME:
        return f"out of reach of {search.shape.node_filter.unreachable(node)}"
    if why is Ineligibility.ATTACH_LIMIT:
        return f"{why} of {search.shape.node_filter.full_driver(node)}"
    if why is Ineligibility.RUNTIME_CLASS:
        return f"{why} {node.outside}"
    return f"{why}: {node.closed}" if why is Ineligibility.CLOSED else why


def _occupied(
    *, search: Search, ids: Sequence[int], reason: BlockReason, names: Callable[[int], bool]
) -> Rejection:
    # 1. Choose the domain with the most room now, then with the most free GPUs.
    most = search.most() if len(ids) > 1 else None
    search.index.catch_up()  # pods with a fixed node were taken from it for `most`
    gpus = search.index.gpus[search.depth].tolist()
    best = ids[0] if most is None else _most_of(ids, most, gpus)
    # 2. Choose the resource that the message is about. Index 0 is GPUs.
    scarce = 0
    if reason is BlockReason.INSUFFICIENT_RESOURCES or not search.total[0]:
        scarce = _scarcest(search=search, identity=best)
    free = int(gpus[best])
    if scarce:
        free = _total(search=search, identity=best, amounts=search.view.free, resource=scarce)
    # 3. Describe what is free there, and what the rest of the pool could hold.
    whole = _capacity_of(search=search, identity=best, resource=scarce)
    needed = search.total[scarce]
    resource = search.view.axis.names[scarce]
    tail = f"{_free_text(resource=resource, free=free, whole=whole)} free"
    if search.depth:
        tail = f"the best {search.level}, {search.domain(best).name}, has {tail}"
    if free >= needed:
        most = most or search.most()
        search.index.catch_up()  # as above
        tail += f" but room for {_pods_text(search, max(0, most[best]))}"
    if reason is BlockReason.TOPOLOGY_DOES_NOT_FIT and search.depth:
        whole_pool = int(search.index.slots[0][0])
        tail += f" (the whole pool has room for {counted(whole_pool, 'such pod')})"
    # 4. Name the gangs whose end would make room, and pods that should have left.
    is_named, blockers = names(0), None
    try:
        blockers = find_blockers(search, best, goes_on=names) if is_named else []
    except CutShortError:
        is_named, blockers = False, []
    if blockers is None:
        blockers, held = [], [f"more than {MOST_CANDIDATES} jobs hold the rest"]
    else:
        held = [blocker.text(scarce) for blocker in blockers]
    head = needs(search)
    if resource not in ("gpus", "pods"):
        head += f" and {amount(resource=resource, count=needed)}"
    hanging = hanging_pods(search.view, search.domain(best)) if is_named else []
    stuck = f"; should have ended: {named(hanging)}" if hanging else ""
    return Rejection(
        reason=reason,
        message=f"{head}; {tail}; {named(held)}{stuck}",
        blockers=tuple(dict.fromkeys(key for blocker in blockers for key in blocker.keys)),
        resource=resource,
        needed=needed,
        available=free,
        remedy=Remedy(kind=RemedyKind.WAIT_FOR, pool=search.view.tree.pool.name),
    )


def _most_of(ids: Sequence[int], *columns: Sequence[int]) -> int:
    """Return the domain with the most in the first column, then in the next one.

    Among equal domains it is the first one. There may be thousands, so the comparison runs in C.
    """
    ranks = list(zip(*(map(column.__getitem__, ids) for column in columns), strict=True))
    return ids[ranks.index(max(ranks))]


def _pods_text(search: Search, room: int) -> str:
    """Return `2 such pods`, with a note if whole slices or pods beside the roles were counted."""
    text = counted(room, "such pod")
    text += " in whole slices" if search.demand.slice_levels else ""
    return f"{text} beside {_roles_text(search)}" if any(search.demand.roles) else text


def _smallest_text(search: Search) -> str:
    main = "one slice" if search.demand.slice_levels else "such a pod"
    return f"{main} beside {_roles_text(search)}" if any(search.demand.roles) else main


def _roles_text(search: Search) -> str:
    roles = zip(search.gang.roles, search.demand.roles, strict=True)
    return " and ".join(f"{count} {role.name}" for role, count in roles if count)


def _capacity_of(*, search: Search, identity: int, resource: int) -> int:
    """Return the amount of a resource on the counted nodes of a domain."""
    if not resource and search.gang.uid not in search.view.allocations:
        return int(capacity_if_empty(search, all_nodes=False).index.gpus[search.depth][identity])
    amounts = search.view.capacity
    return _total(search=search, identity=identity, amounts=amounts, resource=resource)


def _total(*, search: Search, identity: int, amounts: Sequence[Vector], resource: int) -> int:
    """Return the sum of a resource over the counted nodes of a domain."""
    inside = _counted_amounts(search=search, identity=identity, amounts=amounts)
    return sum(max(0, amount[resource]) * count for amount, count in inside)


def _counted_amounts(
    *, search: Search, identity: int, amounts: Sequence[Vector]
) -> list[tuple[Vector, int]]:
    """Return the distinct amounts on the counted nodes of a domain, each with its nodes."""
    span = search.view.tree.span(search.depth, identity)
    inside = list(compress(span, search.index.counted[span.start : span.stop]))
    distinct = search.view.distinct(amounts)
    distinct.catch_up()
    return distinct.counts(inside)


def _scarcest(*, search: Search, identity: int) -> int:
    """Return the requested resource that alone limits the pods most."""
    total = search.total
    inside = _counted_amounts(search=search, identity=identity, amounts=search.view.free)

    def rooms(resource: int) -> float:
        need = search.shape.request[resource]
        if not need or any(search.demand.roles):
            return sum(max(0, free[resource]) * nodes for free, nodes in inside) / total[resource]
        return sum(max(0, free[resource]) // need * nodes for free, nodes in inside)

    requested = [r for r, need in enumerate(total) if need]
    return min(requested, key=lambda r: (rooms(r), r))


def _free_text(*, resource: str, free: int, whole: int) -> str:
    """Return `2 of 4` for GPUs, `0 of 110 pod slots` or `4 of 64 CPU`. The unit appears once."""
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
