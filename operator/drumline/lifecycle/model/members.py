"""Who belongs to a gang: each member has an index, a node, and a birth.

The birth is the generation in which the member's pod was created; it is part of the pod's name. A
pod that carries another birth than its member, or belongs to no member, is a *stray*. Survivors of
a recovery keep their births, so nothing that is done to one member can touch another's pod.

`Assignment` keeps this in few bytes; here it is unfolded and folded again. O(members).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from drumline.api.assignment import Assignment, PoolNodes, ReplacedMembers
from drumline.api.jobstatus import TrainingJobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMember:
    """One place of a gang and the pod that stands for it."""

    index: int
    node: str
    pod_generation: int


def members_of(status: TrainingJobStatus) -> tuple[GangMember, ...]:
    """All members by position, lost ones included; none without an assignment."""
    assignment = status.assignment
    if assignment is None:
        return ()
    base = assignment.generation or status.generation or 0
    births = {
        index: renewal.generation
        for renewal in assignment.replaced or ()
        for index in renewal.indices
    }
    return tuple(
        GangMember(index=index, node=node, pod_generation=births.get(index, base))
        for index, node in zip(assignment.indices(), assignment.node_names(), strict=True)
    )


def assignment_of(
    pool: str,
    members: Iterable[GangMember],
    *,
    lost: Collection[int] = (),
    joining: Collection[int] = (),
) -> Assignment:
    """`members` as status keeps them.

    Args:
        pool: their GpuPool.
        members: at least one.
        lost: indices of those that were given up.
        joining: indices of those the others train without.
    """
    ordered = sorted(members, key=lambda member: member.index)
    base = Counter(member.pod_generation for member in ordered).most_common(1)[0][0]
    later: dict[int, list[int]] = defaultdict(list)
    for member in ordered:
        if member.pod_generation != base:
            later[member.pod_generation].append(member.index)
    live = {member.index for member in ordered}
    absent = [index for index in range(ordered[-1].index) if index not in live]
    places = pool_nodes(pool, [member.node for member in ordered])
    return Assignment(
        gpu_pool=places.gpu_pool,
        prefix=places.prefix,
        nodes=places.nodes,
        generation=base,
        replaced=[
            ReplacedMembers(generation=number, indices=later[number]) for number in sorted(later)
        ]
        or None,
        absent=absent or None,
        lost=sorted(live.intersection(lost)) or None,
        joining=sorted(live.intersection(joining)) or None,
    )


def pool_nodes(pool: str, nodes: Sequence[str]) -> PoolNodes:
    """Places with the nodes' common prefix written once."""
    prefix = nodes[0]
    for name in nodes:
        while not name.startswith(prefix):
            prefix = prefix[:-1]
    return PoolNodes(gpu_pool=pool, prefix=prefix, nodes=[name[len(prefix) :] for name in nodes])


def with_new_pods(
    members: Iterable[GangMember], indices: Collection[int], *, pod_generation: int
) -> list[GangMember]:
    """The members, those with these indices to be born anew on their nodes."""
    chosen = frozenset(indices)
    return [
        replace(each, pod_generation=pod_generation) if each.index in chosen else each
        for each in members
    ]


def with_new_nodes(
    members: Sequence[GangMember],
    nodes: Sequence[str],
    positions: Collection[int],
    *,
    pod_generation: int,
) -> list[GangMember]:
    """The members, those at these positions to be born anew on `nodes[position]`."""
    return [
        replace(member, node=nodes[position], pod_generation=pod_generation)
        if position in positions
        else member
        for position, member in enumerate(members)
    ]


def resized_members(
    members: Sequence[GangMember],
    *,
    kept: Collection[int],
    added: Sequence[str],
    pod_generation: int,
) -> list[GangMember]:
    """The members at the kept positions, and new ones on the added nodes.

    New ones take the lowest indices that nobody has.
    """
    stay = [member for position, member in enumerate(members) if position in kept]
    taken = {member.index for member in stay}
    free = (index for index in range(len(taken) + len(added)) if index not in taken)
    fresh = [
        GangMember(index=next(free), node=node, pod_generation=pod_generation) for node in added
    ]
    return sorted([*stay, *fresh], key=lambda member: member.index)


def lost_positions(status: TrainingJobStatus) -> frozenset[int]:
    """Positions in the assignment whose members were given up: what a scheduler fills again."""
    assignment = status.assignment
    if assignment is None or not assignment.lost:
        return frozenset()
    lost = frozenset(assignment.lost)
    return frozenset(
        position for position, index in enumerate(assignment.indices()) if index in lost
    )
