"""Pack main pods that are known to fit into a domain.

At each level the pods use as few child domains as possible, and the tightest of these. Domains with
a label come before nameless ones. On the nodes, one node takes all remaining pods if it can hold
them. Otherwise nodes in use come before empty nodes. A repair or a growth first uses the domains
with most of the gang's other pods. A new gang that requests balance is spread evenly (`spreading`).

Example: 6 pods, racks with 5, 4 and 2 slots and 20, 16 and 8 free GPUs. No rack holds all. The two
with most slots (5 and 4) hold 9, so 3 slots are spare. The rack of 5 may be exchanged for one with
at least 2 slots and fewer free GPUs: the rack of 2. It gets 2 pods and the rack of 4 gets 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from drumline_scheduler.placement.slicing import SliceLevel, unit
from drumline_scheduler.placement.slots import SlotIndex
from drumline_scheduler.placement.spreading import even_shares
from drumline_scheduler.placement.topology import Counts

PodsByNode = dict[int, int]
"""Pods by node ordinal."""
PodShares = list[tuple[int, int]]
"""Domain ids and the number of pods for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packer:
    """Packs pods of one shape.

    The index has to be up to date.
    """

    index: SlotIndex
    slice_levels: tuple[SliceLevel, ...] = ()
    beside: tuple[int, ...] = ()
    """Ordinals of the gang's other pods, one entry for each pod."""
    spread_depth: int = 0
    """Depth over whose domains the pods are balanced. 0: the pods are not balanced."""

    def fill(self, *, depth: int, identity: int, pods: int) -> PodsByNode:
        """Return the nodes for pods in a domain that has slots for them.

        Args:
            depth: level of the topology tree. 0 is the whole pool.
            identity: id of the domain within its depth.
            pods: number of pods to place.
        """
        tree = self.index.tree
        # Below the leaf depth every domain is a single node.
        if depth > tree.leaf_depth:
            return {tree.span(depth, identity).start: pods}
        below = depth + 1
        # Divide the pods among domains one depth down, or directly among those of the balanced
        # level.
        shares = self._balanced(depth=depth, identity=identity, pods=pods)
        if shares:
            below = self.spread_depth
        elif depth == tree.leaf_depth:
            buckets = self.index.bucket(identity)
            return fill_nodes(buckets=buckets, pods=pods, suspicion=tree.suspicion)
        else:
            shares = self._shares(depth=below, children=tree.children(depth, identity), pods=pods)
        # Then fill each domain in the same way. Their nodes are disjoint.
        places: PodsByNode = {}
        for child, share in shares:
            places |= self.fill(depth=below, identity=child, pods=share)
        return places

    def _balanced(self, *, depth: int, identity: int, pods: int) -> PodShares:
        """Return even shares of the domains of the balanced level, in whole slices.

        Slices that are wider than this level are filled one by one first, unless one of its domains
        holds everything.
        """
        goal = self.spread_depth
        if goal <= depth:
            return []
        tree = self.index.tree
        span = tree.span(depth, identity)
        row = tree.domain_of[goal]
        # A domain without the label of a slice or of the level itself cannot take part.
        ids = np.arange(row[span.start], row[span.stop - 1] + 1)
        for slice_level in self.slice_levels:
            ids = ids[tree.usable(goal, within=min(slice_level.depth, goal))[ids]]
        ids = ids[tree.known[goal][ids]]
        shares = even_shares(
            ids=ids,
            rooms=self.index.slots_in_slices(self.slice_levels)[goal][ids],
            gpus=self.index.gpus[goal][ids],
            pods=pods,
            unit=self.spread_unit,
        )
        return shares if self.balances(depth) or len(shares) == 1 else []

    def balances(self, depth: int) -> bool:
        """Return whether pods in a domain of `depth` are spread directly over the balanced level.

        This is not so if a slice level lies between. Then slices are filled first.
        """
        goal = self.spread_depth
        return depth < goal and not any(
            depth < slice_level.depth < goal for slice_level in self.slice_levels
        )

    @property
    def spread_unit(self) -> int:
        """Pods that stay together in an even spread."""
        return max(
            unit(slice_levels=self.slice_levels, depth=self.spread_depth), self.index.shape.grain
        )

    def _shares(self, *, depth: int, children: range, pods: int) -> PodShares:
        near: PodShares = []
        ids = np.arange(children.start, children.stop)
        # Stay near the gang's other pods first, then use the fewest further domains.
        if self.beside:
            near = self._near(depth=depth, children=children, pods=pods)
            pods -= sum(share for _, share in near)
            ids = ids[~np.isin(ids, [child for child, _ in near])]
        return near + self._fewest_domains(depth=depth, ids=ids, pods=pods) if pods else near

    def _near(self, *, depth: int, children: range, pods: int) -> PodShares:
        """Return shares of the domains of the gang's other pods, those with most pods first."""
        near = neighbours(index=self.index, beside=self.beside, depth=depth)
        rooms, known = (
            self.index.slots_in_slices(self.slice_levels)[depth],
            self.index.tree.known[depth],
        )
        shares: PodShares = []
        for child in sorted(set(near) & set(children), key=lambda i: (-near[i], i)):
            share = min(pods, int(rooms[child])) if known[child] else 0
            if share:
                shares.append((child, share))
                pods -= share
        return shares

    def _fewest_domains(self, *, depth: int, ids: Counts, pods: int) -> PodShares:
        """Return the fewest domains that hold the pods, with their shares."""
        ids = ids[self.index.slots_in_slices(self.slice_levels)[depth][ids] > 0]
        rooms = self.index.slots_in_slices(self.slice_levels)[depth][ids]
        gpus, known = self.index.gpus[depth][ids], self.index.tree.known[depth][ids]
        suspicion = self.index.tree.suspicion_in(depth, ids)
        # One labelled domain for everything, if possible: the tightest one.
        large = np.flatnonzero((rooms >= pods) & known)
        if large.size:
            order = np.lexsort((large, suspicion[large], rooms[large], gpus[large]))
            return [(int(ids[large[order[0]]]), pods)]
        # Otherwise the domains with the most slots give the smallest number of domains.
        order = np.lexsort((ids, suspicion, gpus, -rooms, ~known))
        total = np.cumsum(rooms[order])
        count = int(np.searchsorted(total, pods)) + 1
        # Spare slots in that selection allow tighter domains, so that roomy ones stay free.
        chosen = _tighter(
            order=order.tolist(),
            count=count,
            spare=int(total[count - 1]) - pods,
            rooms=rooms.tolist(),
            gpus=gpus.tolist(),
            known=known.tolist(),
        )
        shares: PodShares = []
        for index_of in chosen:
            share = min(pods, int(rooms[index_of]))
            shares.append((int(ids[index_of]), share))
            pods -= share
        return shares


def neighbours(*, index: SlotIndex, beside: Sequence[int], depth: int) -> Counter[int]:
    """Return the number of a gang's other pods in each domain of a depth.

    Args:
        index: slots that are free on each node and domain.
        beside: ordinals of nodes that hold the gang's other pods.
        depth: level of the topology tree. 0 is the whole pool.
    """
    row = index.tree.domain_of[depth]
    return Counter(row[ordinal] for ordinal in beside)


def _tighter(
    *,
    order: list[int],
    count: int,
    spare: int,
    rooms: list[int],
    gpus: list[int],
    known: list[bool],
) -> list[int]:
    """Exchange each of the first `count` domains for a tighter one if `spare` slots allow it."""
    chosen, unused = order[:count], order[count:]
    for place, domain in enumerate(chosen):
        if not unused or not spare:
            break
        enough = [
            i for i in unused if rooms[i] >= rooms[domain] - spare and known[i] == known[domain]
        ]
        best = min(enough, key=lambda i: (gpus[i], rooms[i], i), default=domain)
        if gpus[best] < gpus[domain]:
            spare -= rooms[domain] - rooms[best]
            chosen[place] = best
            unused.remove(best)
    return chosen


def fill_nodes(
    *,
    buckets: Mapping[tuple[int, int], list[int]],
    pods: int,
    suspicion: Mapping[int, int],
) -> PodsByNode:
    """Fill the fullest nodes first, but one node for all remaining pods once one holds them.

    Args:
        buckets: ordinals of nodes by free GPUs and slots.
        pods: number of pods; the nodes hold them.
        suspicion: evidence against nodes, by ordinal.
    """
    places: PodsByNode = {}
    # Buckets in ascending order of free GPUs: the fullest nodes first.
    left = {cell: _trusted_first(buckets[cell], suspicion) for cell in sorted(buckets)}
    largest = max(slots for _, slots in left)
    while pods:
        # The fullest node that holds all remaining pods wins over filling several nodes.
        holds_all = (c for c in left if c[1] >= pods) if pods <= largest else ()
        cell = next(iter(holds_all), None) or next(iter(left))
        ordinal = next(left[cell], None)
        if ordinal is None:
            del left[cell]
            continue
        places[ordinal] = min(pods, cell[1])
        pods -= places[ordinal]
    return places


def _trusted_first(ordinals: Sequence[int], suspicion: Mapping[int, int]) -> Iterator[int]:
    """Yield equal nodes in their order, those with evidence against them last."""
    if not suspicion:
        yield from ordinals
        return
    yield from (i for i in ordinals if i not in suspicion)
    yield from sorted((i for i in ordinals if i in suspicion), key=lambda i: (suspicion[i], i))
