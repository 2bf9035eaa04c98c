"""Place the role pods of a gang so that its main pods still fit beside them.

From the chosen domain down, each level uses one child domain if it can hold everything. Otherwise
it uses as few as possible, those with pods of the gang first. On the nodes, role pods go where they
cost the fewest main slots, then on nodes in use before empty nodes. The role pods of a balanced
gang go where they allow the fewest domains, then the most even shares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from drumline_scheduler.placement.bin_selection import (
    Bin,
    BinChoice,
    BinOption,
    bin_of_domain,
    cheapest,
    fewest,
    fewest_used,
    steps_of,
)
from drumline_scheduler.placement.frontier import Frontier, Frontiers
from drumline_scheduler.placement.packing import Packer, neighbours
from drumline_scheduler.placement.slots import SlotIndex

MOST_BALANCE_STEPS: Final = 1 << 21
"""Largest number of sums that are compared to make the shares of domains more even. Beyond it,
shares are less even than they could be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlacement:
    """The nodes of the role pods, and the domains in which the main pods are packed beside them."""

    roles: list[list[int]]
    """Node ordinals, by role."""
    main: list[tuple[int, int, int]]
    """Depth and id of domains, and the number of main pods to pack there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePlacer:
    """Finds the nodes of role pods."""

    packer: Packer
    """Packs the main pods afterwards."""
    frontiers: Frontiers

    @property
    def index(self) -> SlotIndex:
        """The slots of the main pods."""
        return self.packer.index

    def find(self, *, depth: int, identity: int, pods: int) -> RolePlacement:
        """Return nodes for all role pods in a domain that can hold everything.

        Args:
            depth: depth of the domain.
            identity: id of the domain.
            pods: main pods that must fit there too.
        """
        placement = RolePlacement(roles=[[] for _ in self.frontiers.mix.pods], main=[])
        target = len(self.frontiers.mix.combinations) - 1
        self._descend(placement, (depth, identity), target=target, pods=pods)
        return placement

    def _balance(
        self, placement: RolePlacement, domain: tuple[int, int], *, target: int, pods: int
    ) -> bool:
        """Place everything, main pods spread evenly over the domains of the balanced level.

        The pods use the fewest of these domains that hold them. The smallest share is as large as
        possible, then the largest share as small as possible.

        Returns:
            False if the level's labelled domains cannot hold the pods, or if several domains are
            needed while slices are wider than the level. Nothing is placed then.
        """
        over, unit = self.packer.spread_depth, self.packer.spread_unit
        row = self.index.tree.domain_of[over]
        span = self.index.tree.span(*domain)
        # Equal domains share their options: a frontier may have hundreds of entries.
        parts_of: defaultdict[tuple[Frontier, bool], list[int]] = defaultdict(list)
        for i in range(row[span.start], row[span.stop - 1] + 1):
            parts_of[self.frontiers.frontier(over, i), self._is_labelled(over, i)].append(i)

        # A domain counts as used only with main pods, not with role pods alone.
        alone = {
            key: [
                BinOption(roles=roles, counts=False, room=0)
                for roles, room in enumerate(key[0])
                if roles and room >= 0
            ]
            for key in parts_of
        }

        def bins(low: int, high: int, *, most: int | None = None) -> list[Bin]:
            parts: list[Bin] = []
            for (frontier, labelled), ids in parts_of.items():
                options = alone[frontier, labelled]
                if labelled:
                    options = [*options, *_main_options(frontier, low=low * unit, high=high * unit)]
                parts += [Bin(identity=i, options=options) for i in ids[:most]]
            return sorted(parts, key=lambda part: part.identity)

        def share_out(low: int, high: int) -> list[BinChoice]:
            return fewest(mix=mix, bins=bins(low, high), target=target, pods=pods) or []

        # 1. The fewest domains that hold the pods, without a bound on the shares.
        mix, need = self.frontiers.mix, pods // unit
        widest = bins(1, need)
        first = fewest(mix=mix, bins=widest, target=target, pods=pods) or []
        count = sum(share.option.counts for share in first)
        if not count or pods % unit or (count > 1 and not self.packer.balances(domain[0])):
            return False
        # 2. Raise the smallest share, then lower the largest, while the same number is enough.
        tries = Tries(MOST_BALANCE_STEPS // steps_of(mix=mix, bins=widest, most=count))

        # No more of equal domains are used than these, and one for each role pod alone.
        most = count + sum(mix.combinations[target])

        def suffices(low: int, high: int) -> bool:
            parts = bins(low, high, most=most)
            used = fewest_used(mix=mix, bins=parts, target=target, pods=pods, most=count)
            return used == count

        rooms = [max((each.room for each in part.options), default=0) // unit for part in widest]
        least, most_even = bounds_of_shares(rooms, count=count, pods=need)
        low = _last(range(1, least + 1), lambda n: suffices(n, need), tries=tries)
        over_even = range(need - most_even + 1)
        high = need - _last(over_even, lambda n: suffices(low, need - n), tries=tries)
        # 3. Give each domain the smallest share, and distribute the
        # remaining pods up to the largest.
        left = pods - count * low * unit
        for share in share_out(low, high):
            main = 0
            if share.option.counts:
                more = min(left, share.option.room - low * unit)
                left, main = left - more, low * unit + more
            part = (over, share.identity)
            self._descend(placement, part, target=share.option.roles, pods=main)
        return True

    def _is_labelled(self, depth: int, identity: int) -> bool:
        """Return whether main pods may be spread over a domain of the balanced level."""
        tree = self.index.tree
        levels = {
            depth,
            *(min(slice_level.depth, depth) for slice_level in self.packer.slice_levels),
        }
        return all(tree.usable(depth, within=level)[identity] for level in levels)

    def _descend(
        self, placement: RolePlacement, domain: tuple[int, int], *, target: int, pods: int
    ) -> None:
        """Place a combination of role pods, and divide the main pods among domains."""
        depth, identity = domain
        tree, mix = self.index.tree, self.frontiers.mix
        # Balance above the balanced level, if role pods and main pods are both placed here. Main
        # pods alone are balanced by the packer.
        wanted = target and pods and self.packer.spread_depth > depth
        if wanted and self._balance(placement, domain, target=target, pods=pods):
            return
        # No role pods are left, or only nodes are below. The main pods are packed later.
        if not target or depth >= tree.leaf_depth:
            span = tree.span(depth, identity)
            alone = depth > tree.leaf_depth
            by_node = [(span.start, target)] if alone else self._cheapest(span, target)
            for ordinal, part in by_node:
                for role, count in enumerate(mix.combinations[part]):
                    placement.roles[role] += [ordinal] * count
            if pods:
                placement.main.append((depth, identity, pods))
            return
        # Slots are kept for pods that are anchored here, too, down to the nodes. With anchors,
        # `placement.main` is not used.
        kept = pods + self.frontiers.anchored_in(depth, identity)
        for share in self._fewest_domains(depth + 1, tree.children(depth, identity), target, kept):
            main = min(kept, share.option.room)
            kept -= main
            self._descend(
                placement, (depth + 1, share.identity), target=share.option.roles, pods=main
            )

    def _fewest_domains(self, depth: int, ids: range, target: int, pods: int) -> list[BinChoice]:
        """Return the fewest domains that hold everything, those with the most room first."""
        near = neighbours(index=self.index, beside=self.packer.beside, depth=depth)
        gpus = self.index.gpus[depth]
        parts = {i: self.frontiers.frontier(depth, i) for i in ids}
        alone = [i for i, frontier in parts.items() if frontier[target] >= pods]
        if alone:
            best = min(alone, key=lambda i: (-near[i], int(gpus[i]), i))
            return [
                BinChoice(identity=best, option=BinOption(roles=target, counts=True, room=pods))
            ]
        line = sorted(parts, key=lambda i: (-near[i], -parts[i][0], i))
        choices = fewest(
            mix=self.frontiers.mix,
            bins=[bin_of_domain(i, parts[i]) for i in line],
            target=target,
            pods=pods,
        )
        if choices is None:
            raise AssertionError("a domain promises more than its parts hold")
        return sorted(choices, key=lambda share: (-share.option.room, share.identity))

    def _cheapest(self, span: range, target: int) -> list[tuple[int, int]]:
        """Return the nodes on which the role pods cost the fewest main slots."""
        if not target:
            return []
        near, mix = set(self.packer.beside), self.frontiers.mix
        by_kind: dict[Frontier, list[int]] = defaultdict(list)
        for ordinal in span:
            by_kind[self.frontiers.by_node[ordinal]].append(ordinal)
        # Role pods cannot use more equal nodes than there are role pods,
        # so the other nodes are dropped.
        enough = sum(mix.combinations[target])

        def rank(ordinal: int) -> tuple[bool, tuple[int, int], int]:
            return (ordinal not in near, self.index.cell(ordinal), ordinal)

        line = [
            ordinal for nodes in by_kind.values() for ordinal in sorted(nodes, key=rank)[:enough]
        ]
        # Equal nodes share their options, and with them what the table computes of these.
        costs = {frontier: _costs(frontier) for frontier in by_kind}
        by_node = self.frontiers.by_node
        parts = [
            Bin(identity=ordinal, options=costs[by_node[ordinal]])
            for ordinal in sorted(line, key=rank)
        ]
        choices = cheapest(mix=mix, bins=parts, target=target, most=enough)
        return [(share.identity, share.option.roles) for share in choices]


def _costs(frontier: Frontier) -> Sequence[BinOption]:
    """Return the options of a node. `room` is the negative number of main slots that they cost."""
    return [
        BinOption(roles=roles, counts=True, room=room - frontier[0])
        for roles, room in enumerate(frontier)
        if roles and room >= 0
    ]


def _main_options(frontier: Frontier, *, low: int, high: int) -> Sequence[BinOption]:
    """Return the options of a domain of the balanced level with main pods."""
    return [
        BinOption(roles=roles, counts=True, room=min(room, high))
        for roles, room in enumerate(frontier)
        if room >= low
    ]


@dataclass(slots=True)
class Tries:
    """Number of further tries."""

    left: int


def bounds_of_shares(rooms: Sequence[int], *, count: int, pods: int) -> tuple[int, int]:
    """Return a bound above the least share, and a bound below the largest share.

    Without role pods, shares reach both.

    Args:
        rooms: main pods that fit into each domain.
        count: number of domains that get a share.
        pods: main pods of all shares.
    """
    roomy = sorted(rooms, reverse=True)[:count]
    left = pods
    for domains, room in zip(range(count, 0, -1), reversed(roomy), strict=True):
        share = -(-left // domains)
        if room >= share:
            return min(roomy[-1], pods // count), share
        left -= room
    return min(roomy[-1], pods // count), pods


def _last(numbers: Sequence[int], holds: Callable[[int], bool], *, tries: Tries) -> int:
    """Return the last number of the prefix for which `holds` is true; at worst the first number.

    Args:
        numbers: the numbers.
        holds: whether a number belongs to the prefix. It does not need to hold for the first one.
        tries: calls of `holds` that are left. Without any, an earlier number is returned.
    """
    low, high, step = 0, len(numbers) - 1, 0
    while low < high and tries.left:
        tries.left -= 1
        # The last numbers are the likely ones. Steps back double, up to half of what is left.
        middle = max(high - step, (low + high + 1) // 2)
        if holds(numbers[middle]):
            low, step = middle, 1
        else:
            high, step = middle - 1, 2 * step + 1
    return numbers[low]
