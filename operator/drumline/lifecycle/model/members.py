"""The members of a gang: each has an index, a node and a pod generation.

The pod generation is the generation in which the member's pod was created. It is part of the pod's
name. A pod of another generation than its member's pod generation, or with an index of no member,
is an *orphan pod*. Members that survive a recovery keep their pod generations, so an action on one
member can never affect the pod of another.

`Assignment` stores members in compressed form. This module decodes and encodes it. O(members).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from drumline_api.assignment import Assignment, PoolNodes, ReplacedMembers, SurplusMembers
from drumline_api.jobstatus import TrainingJobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMember:
    """A member of a gang: its node, and the generation of the pod that represents it."""

    index: int
    node: str
    pod_generation: int
    surplus_pool: str | None = None
    """Spot pool of its node if it is surplus. None: the node is in the gang's pool."""


def members_of(status: TrainingJobStatus) -> tuple[GangMember, ...]:
    """Return all members by position, including lost ones. Empty without an assignment.

    Raises:
        ValueError: the assignment contradicts itself.
    """
    assignment = status.assignment
    if assignment is None:
        return ()
    # Most members were created together. Only later pods are listed with their generation.
    base = assignment.generation or status.generation or 0
    pod_generations = {
        index: renewal.generation
        for renewal in assignment.replaced or ()
        for index in renewal.indices
    }
    surplus = assignment.surplus
    beyond = frozenset(surplus.indices if surplus else ())
    indices, nodes = assignment.indices(), assignment.node_names()
    if len(indices) != len(nodes):
        raise ValueError(f"status.assignment: {len(nodes)} nodes for {len(indices)} members")
    return tuple(
        GangMember(
            index=index,
            node=node,
            pod_generation=pod_generations.get(index, base),
            surplus_pool=surplus.gpu_pool if surplus and index in beyond else None,
        )
        for index, node in zip(indices, nodes, strict=True)
    )


def assignment_of(
    pool: str,
    members: Iterable[GangMember],
    *,
    lost: Collection[int] = (),
    joining: Collection[int] = (),
) -> Assignment:
    """Return `members` in the form that the status stores.

    Args:
        pool: GpuPool of the members, except surplus members.
        members: at least one.
        lost: indices of lost members.
        joining: indices of members that do not train yet while the gang grows.
    """
    # The most frequent pod generation is stored once, and only the others are listed.
    ordered = sorted(members, key=lambda member: member.index)
    base = Counter(member.pod_generation for member in ordered).most_common(1)[0][0]
    later: dict[int, list[int]] = defaultdict(list)
    for member in ordered:
        if member.pod_generation != base:
            later[member.pod_generation].append(member.index)
    indices = {member.index for member in ordered}
    # Indices have gaps after a gang has shrunk. The gaps are fewer than the members.
    absent = [index for index in range(ordered[-1].index) if index not in indices]
    surplus = {member.index: member.surplus_pool for member in ordered if member.surplus_pool}
    compressed = pool_nodes(pool, [member.node for member in ordered])
    return Assignment(
        gpu_pool=compressed.gpu_pool,
        prefix=compressed.prefix,
        nodes=compressed.nodes,
        generation=base,
        replaced=[
            ReplacedMembers(generation=number, indices=later[number]) for number in sorted(later)
        ]
        or None,
        absent=absent or None,
        surplus=_surplus_members(surplus) if surplus else None,
        lost=sorted(indices.intersection(lost)) or None,
        joining=sorted(indices.intersection(joining)) or None,
    )


def _surplus_members(pools: Mapping[int, str]) -> SurplusMembers:
    """Return the surplus members, which are all in one pool."""
    (pool,) = set(pools.values())
    return SurplusMembers(gpu_pool=pool, indices=sorted(pools))


def pool_nodes(pool: str, nodes: Sequence[str]) -> PoolNodes:
    """Return the nodes of a pool with their common prefix stored once."""
    # Node names of a pool mostly share a long prefix, and a gang may have 10,000 members.
    prefix = nodes[0]
    for name in nodes:
        while not name.startswith(prefix):
            prefix = prefix[:-1]
    return PoolNodes(gpu_pool=pool, prefix=prefix, nodes=[name[len(prefix) :] for name in nodes])


def with_new_pods(
    members: Iterable[GangMember], indices: Collection[int], *, pod_generation: int
) -> list[GangMember]:
    """Return the members. Those with these indices get new pods on their nodes.

    Args:
        members: all members.
        indices: indices of members that get new pods.
        pod_generation: generation of the new pods.
    """
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
    """Return the members. Those at these positions get new pods on `nodes[position]`.

    Args:
        members: all members.
        nodes: a node for each position.
        positions: positions that get new pods.
        pod_generation: generation of the new pods.
    """
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
    surplus_pool: str | None = None,
) -> list[GangMember]:
    """Return the members at the kept positions, and new ones on the added nodes.

    New members take the lowest free indices.

    Example: members 0, 1, 3 with `kept` = positions 0 and 2 and one added node: members 0 and 3
    stay, the new member gets index 1.

    Args:
        members: all members, by position.
        kept: positions that stay.
        added: a node for each new member.
        pod_generation: generation of the new pods.
        surplus_pool: pool of the new members, if they are surplus.
    """
    # Members that stay keep their indices and pods. New ones fill the gaps.
    remaining = [member for position, member in enumerate(members) if position in kept]
    taken = {member.index for member in remaining}
    free = (index for index in range(len(taken) + len(added)) if index not in taken)
    new = [
        GangMember(
            index=next(free), node=node, pod_generation=pod_generation, surplus_pool=surplus_pool
        )
        for node in added
    ]
    return sorted([*remaining, *new], key=lambda member: member.index)


def base_size(status: TrainingJobStatus) -> int:
    """Return the number of members that are not surplus. They come first. 0 without places."""
    assignment = status.assignment
    if assignment is None:
        return 0
    surplus = assignment.surplus
    return len(assignment.nodes) - (len(surplus.indices) if surplus else 0)


def indices_by_pool(status: TrainingJobStatus, indices: Iterable[int]) -> dict[str, list[int]]:
    """Return these members by the pool of their nodes."""
    assignment = status.assignment
    surplus = assignment.surplus if assignment is not None else None
    beyond = frozenset(surplus.indices if surplus is not None else ())
    by_pool: dict[str, list[int]] = {}
    for index in indices:
        own = assignment.gpu_pool if assignment is not None else ""
        pool = surplus.gpu_pool if surplus is not None and index in beyond else own
        by_pool.setdefault(pool, []).append(index)
    return by_pool


def nodes_by_pool(status: TrainingJobStatus) -> dict[str, list[str]]:
    """Return the node of each member by pool: first the gang's own pool, then its surplus's."""
    assignment = status.assignment
    if assignment is None:
        return {}
    names, first = assignment.node_names(), base_size(status)
    by_pool = {assignment.gpu_pool: list(names[:first])}
    if assignment.surplus is not None:
        by_pool.setdefault(assignment.surplus.gpu_pool, []).extend(names[first:])
    return by_pool


def lost_positions(status: TrainingJobStatus) -> frozenset[int]:
    """Return positions of lost members in the assignment. The scheduler places them again."""
    assignment = status.assignment
    if assignment is None or not assignment.lost:
        return frozenset()
    lost = frozenset(assignment.lost)
    return frozenset(
        position for position, index in enumerate(assignment.indices()) if index in lost
    )
