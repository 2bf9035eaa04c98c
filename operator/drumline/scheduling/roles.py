"""Where the role pods of a gang go, so that its main pods still fit beside them.

From the chosen domain downwards, at each level one domain for everything if it can hold it, else as
few as possible, those in which the gang has pods already first; on the nodes where they cost the
fewest places of main pods, then nodes in use before empty ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from drumline.scheduling.frontier import Frontier, Frontiers
from drumline.scheduling.packing import neighbours
from drumline.scheduling.slots import SlotIndex

Part = tuple[int, Frontier]
"""Id (of a domain or node) and what it can hold."""
_FEW: Final = 8
_NEVER: Final = -(1 << 50)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seats:
    """Where role pods go, and how many main pods go where beside them."""

    roles: list[list[int]]
    """By role: node ordinals."""
    main: list[tuple[int, int, int]]
    """Depth and id of domains, and main pods to be packed there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSeats:
    """Looks for the nodes of role pods."""

    index: SlotIndex
    frontiers: Frontiers
    beside: tuple[int, ...] = ()

    def find(self, *, depth: int, identity: int, pods: int) -> Seats:
        """Places for all role pods, in a domain that can hold everything.

        Args:
            depth: of the domain.
            identity: of the domain.
            pods: main pods that have to fit there too.
        """
        mix = self.frontiers.mix
        seats = Seats(roles=[[] for _ in mix.pods], main=[])
        self._descend(seats, (depth, identity), target=len(mix.combinations) - 1, pods=pods)
        for nodes in seats.roles:
            nodes.sort()
        return seats

    def _descend(self, seats: Seats, domain: tuple[int, int], *, target: int, pods: int) -> None:
        """Seat a combination of role pods, and tell how many main ones are to go where."""
        depth, identity = domain
        tree, mix = self.index.tree, self.frontiers.mix
        if not target or depth >= tree.leaf_depth:
            span = tree.span(depth, identity)
            alone = depth > tree.leaf_depth
            found = [(span.start, target)] if alone else self._cheapest(span, target)
            for ordinal, part in found:
                for role, count in enumerate(mix.combinations[part]):
                    seats.roles[role] += [ordinal] * count
            if pods:
                seats.main.append((depth, identity, pods))
            return
        below = depth + 1
        parts = [(i, self.frontiers.of(below, i)) for i in tree.children(depth, identity)]
        needed = pods + self.frontiers.anchored_in(depth, identity)
        chosen = self._few(below, parts, target, needed)
        for child, part, room in sorted(chosen, key=lambda one: (-one[2], one[0])):
            share = min(pods, room)
            pods -= share
            self._descend(seats, (below, child), target=part, pods=share)

    def _few(
        self, depth: int, parts: Sequence[Part], target: int, pods: int
    ) -> list[tuple[int, int, int]]:
        """The fewest domains that hold everything: id, combination, and main pods each can hold."""
        near = neighbours(index=self.index, beside=self.beside, depth=depth)
        gpus = self.index.gpus[depth]
        alone = [i for i, frontier in parts if frontier[target] >= pods]
        if alone:
            return [(min(alone, key=lambda i: (-near[i], int(gpus[i]), i)), target, pods)]
        line = sorted(parts, key=lambda part: (-near[part[0]], -part[1][0], part[0]))
        for most in (_FEW, len(line)):
            found = _share_out(self.frontiers, line, target=target, pods=pods, most=most)
            if found is not None:
                return found
        raise AssertionError("a domain promises more than its parts hold")

    def _cheapest(self, span: range, target: int) -> list[tuple[int, int]]:
        """The nodes on which the role pods take the fewest places from main ones."""
        if not target:
            return []
        near = set(self.beside)
        by_kind: dict[Frontier, list[int]] = defaultdict(list)
        for ordinal in span:
            by_kind[self.frontiers.by_node[ordinal]].append(ordinal)
        enough = sum(self.frontiers.mix.combinations[target])
        line: list[Part] = []
        for frontier, ordinals in by_kind.items():
            ordinals.sort(key=lambda i: (i not in near, self.index.cells[i], i))
            loss = tuple(n - frontier[0] if n >= 0 else _NEVER for n in frontier)
            line += [(ordinal, loss) for ordinal in ordinals[:enough]]
        line.sort(key=lambda part: (part[0] not in near, self.index.cells[part[0]], part[0]))
        found = _share_out(self.frontiers, line, target=target, pods=None, most=enough)
        if found is None:
            raise AssertionError("a domain promises more than its nodes hold")
        return [(ordinal, part) for ordinal, part, _ in found if part]


def _share_out(
    frontiers: Frontiers, line: Sequence[Part], *, target: int, pods: int | None, most: int
) -> list[tuple[int, int, int]] | None:
    """Parts (id, combination, what it then holds) that hold the target together.

    With `pods`, the fewest parts that hold so many main pods, and the most they can; without, the
    parts that leave the most, however many.
    """
    mix = frontiers.mix
    best = np.full((most + 1, len(mix.combinations)), _NEVER, dtype=np.int64)
    best[0, 0] = 0
    taken: list[np.ndarray] = []
    for _, frontier in line:
        after, choice = best.copy(), np.full(best.shape, -1, dtype=np.int64)
        for part, room in enumerate(frontier):
            if room <= _NEVER or (pods is not None and room < 0) or (not part and not room):
                continue
            source, goal = mix.shifts[part]
            better = best[:-1, source] + room
            wins = better > after[1:, goal]
            after[1:, goal] = np.where(wins, better, after[1:, goal])
            choice[1:, goal] = np.where(wins, part, choice[1:, goal])
        best = after
        taken.append(choice)
    holds = best[:, target]
    count = int(np.argmax(holds if pods is None else holds >= pods))
    if holds[count] < (_NEVER // 2 if pods is None else pods):
        return None
    return _walk_back(frontiers, line, taken, count=count, target=target)


def _walk_back(
    frontiers: Frontiers,
    line: Sequence[Part],
    taken: Sequence[np.ndarray],
    *,
    count: int,
    target: int,
) -> list[tuple[int, int, int]]:
    mix, found = frontiers.mix, list[tuple[int, int, int]]()
    for (identity, frontier), choice in zip(reversed(line), reversed(taken), strict=True):
        part = int(choice[count, target])
        if part >= 0:
            found.append((identity, part, frontier[part]))
            source, goal = mix.shifts[part]
            target = int(source[int(np.flatnonzero(goal == target)[0])])
            count -= 1
    return found
