"""Select domains or nodes ("bins") that hold role pods and main pods together: a knapsack table.

The table over (bins used, role pods placed) holds the most main pods that fit, bin after bin. So
the fewest bins that hold everything are found exactly. O(bins x bins used x pairs of combinations
of role pods).

A table with more than `MOST_STEPS` is not computed. The role pods are then divided between the two
halves of the bins, then between the quarters, and so on, to leave the most main pods. This holds as
many pods, but may use more bins. O(bins x combinations).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from drumline_scheduler.placement.frontier import Frontier, RoleMix
from drumline_scheduler.placement.topology import Counts
from drumline_scheduler.work import spend

NEVER: Final = -(1 << 50)
MOST_STEPS: Final = 1 << 21
"""Largest number of sums that are compared for one table."""
_FEW: Final = 8
"""Number of bins that are tried first. It is mostly enough, and the table stays small."""
_MORE: Final = 2
"""Bins that are tried first beside those that main pods alone need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinOption:
    """One combination of role pods that a bin can get."""

    roles: int
    """The combination of role pods."""
    counts: bool
    """True if the bin counts as used."""
    room: int
    """Main pods that the bin can hold beside the role pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """A domain or node with its options. Every bin may also get nothing."""

    identity: int
    options: Sequence[BinOption]


@dataclass(frozen=True, slots=True, kw_only=True)
class BinChoice:
    """The option that a bin gets."""

    identity: int
    option: BinOption


def bin_of_domain(identity: int, frontier: Frontier) -> Bin:
    """Return a bin that counts as used with each of its options."""
    options = [
        BinOption(roles=roles, counts=True, room=room)
        for roles, room in enumerate(frontier)
        if room > 0 or (roles and not room)
    ]
    return Bin(identity=identity, options=options)


def fewest(*, mix: RoleMix, bins: Sequence[Bin], target: int, pods: int) -> list[BinChoice] | None:
    """Return the fewest bins that hold a combination of role pods and `pods` main pods.

    Earlier bins are preferred. None if all bins together do not hold the pods.

    Args:
        mix: the role pods.
        bins: the bins in the order of preference.
        target: index of the combination of role pods.
        pods: number of main pods.
    """
    least = _least(bins, pods=pods)
    if least > len(bins):
        return None
    # Try a small table first, then one over all bins. `dict.fromkeys` drops the repeated size.
    small = min(max(_FEW, least + _MORE), len(bins))
    for most in dict.fromkeys((small, len(bins))):
        if steps_of(mix=mix, bins=bins, most=most) > MOST_STEPS:
            return divided(mix=mix, bins=bins, target=target, pods=pods)
        table = _Table(mix=mix, bins=bins, most=most)
        enough = np.flatnonzero(table.holds[:, target] >= pods)
        if enough.size:
            return table.walk_back(count=int(enough[0]), target=target)
    return None


def _least(bins: Sequence[Bin], *, pods: int) -> int:
    """Return a number of bins below which they do not hold the main pods."""
    # Bins with the same options share the search.
    most_of: dict[int, int] = {}
    for bin_ in bins:
        if id(bin_.options) not in most_of:
            most_of[id(bin_.options)] = max((each.room for each in bin_.options), default=0)
    rooms = sorted((most_of[id(bin_.options)] for bin_ in bins), reverse=True)
    held = 0
    for number, room in enumerate(rooms):
        if held >= pods:
            return number
        held += room
    return len(bins) if held >= pods else len(bins) + 1


def fewest_used(*, mix: RoleMix, bins: Sequence[Bin], target: int, pods: int, most: int) -> int:
    """Return the number of bins that `fewest` would use; more than `most` if they do not suffice.

    Args:
        mix: the role pods.
        bins: the bins in the order of preference.
        target: index of the combination of role pods.
        pods: number of main pods.
        most: largest number of bins that matters.
    """
    if steps_of(mix=mix, bins=bins, most=most) > MOST_STEPS:
        choices = divided(mix=mix, bins=bins, target=target, pods=pods)
        return most + 1 if choices is None else sum(each.option.counts for each in choices)
    table = _Table(mix=mix, bins=bins, most=most)
    enough = np.flatnonzero(table.holds[:, target] >= pods)
    return int(enough[0]) if enough.size else most + 1


def cheapest(*, mix: RoleMix, bins: Sequence[Bin], target: int, most: int) -> list[BinChoice]:
    """Return the bins that hold a combination of role pods and leave the most main slots.

    Args:
        mix: the role pods.
        bins: the bins in the order of preference.
        target: index of the combination of role pods.
        most: largest number of bins.
    """
    if steps_of(mix=mix, bins=bins, most=most) > MOST_STEPS:
        return divided(mix=mix, bins=bins, target=target) or []
    table = _Table(mix=mix, bins=bins, most=most)
    return table.walk_back(count=int(np.argmax(table.holds[:, target])), target=target)


def divided(
    *, mix: RoleMix, bins: Sequence[Bin], target: int, pods: int = NEVER // 2
) -> list[BinChoice] | None:
    """Divide role pods between halves of the bins so that they leave the most main pods.

    Args:
        mix: the role pods.
        bins: the bins in the order of preference.
        target: the combination of role pods.
        pods: main pods that must fit beside them.

    Returns:
        The option of each bin that gets any pods; None if the bins do not hold them.
    """
    spend(len(bins) * mix.pairs)
    # 1. What halves, quarters and so on hold: a row by combination for each.
    equal: dict[int, Counts] = {}
    for bin_ in bins:
        if id(bin_.options) not in equal:
            equal[id(bin_.options)] = _most(bin_, size=len(mix.combinations))
    rows = [[equal[id(bin_.options)] for bin_ in bins]]
    first, second, begins = mix.sums
    while len(rows[-1]) > 1:
        pairs = zip(rows[-1][::2], rows[-1][1::2], strict=False)
        whole = [np.maximum.reduceat(left[first] + right[second], begins) for left, right in pairs]
        rows.append([np.maximum(row, NEVER) for row in whole] + rows[-1][2 * len(whole) :])
    if not bins or rows[-1][0][target] < pods:
        return None
    # 2. Back down: the first of the best divisions of each part.
    ends = np.append(begins, len(first))
    targets = [target]
    for parts in reversed(rows[:-1]):
        below: list[int] = []
        for at, goal in enumerate(targets):
            if 2 * at + 1 == len(parts):
                below.append(goal)
                continue
            span = slice(ends[goal], ends[goal + 1])
            best = parts[2 * at][first[span]] + parts[2 * at + 1][second[span]]
            place = int(ends[goal]) + int(np.argmax(best))
            below += [int(first[place]), int(second[place])]
        targets = below
    return _choices(bins=bins, targets=targets, pods=pods)


def _choices(*, bins: Sequence[Bin], targets: Sequence[int], pods: int) -> list[BinChoice]:
    """Return the options for divided role pods. Main pods alone use as few bins as possible."""
    choices: list[BinChoice] = []
    idle: list[BinChoice] = []
    roomiest: dict[tuple[int, int], BinOption | None] = {}
    for bin_, roles in zip(bins, targets, strict=True):
        # Bins with the same options and role pods share the search.
        key = id(bin_.options), roles
        if key not in roomiest:
            options = (option for option in bin_.options if option.roles == roles)
            roomiest[key] = max(options, key=lambda option: option.room, default=None)
        option = roomiest[key]
        if option is not None:
            (choices if roles else idle).append(BinChoice(identity=bin_.identity, option=option))
    pods -= sum(choice.option.room for choice in choices)
    for choice in sorted(idle, key=lambda choice: -choice.option.room):
        if pods <= 0:
            break
        choices.append(choice)
        pods -= choice.option.room
    return choices


def _most(bin_: Bin, *, size: int) -> Counts:
    """Return the most main pods that a bin holds beside each combination of role pods."""
    most = np.full(size, NEVER, dtype=np.int64)
    most[0] = 0  # it may get nothing
    for option in bin_.options:
        most[option.roles] = max(most[option.roles], option.room)
    return most


def steps_of(*, mix: RoleMix, bins: Sequence[Bin], most: int) -> int:
    """Return the number of sums that a table compares."""
    return len(bins) * (most + 1) * mix.pairs


class _Table:
    """The most main pods by number of bins used and combination of role pods."""

    def __init__(self, *, mix: RoleMix, bins: Sequence[Bin], most: int) -> None:
        self._mix = mix
        self._bins = bins
        spend(steps_of(mix=mix, bins=bins, most=most))
        self._before: list[Counts] = []
        """Table by bin, without this bin and the bins behind it."""
        self.holds = np.full((most + 1, len(mix.combinations)), NEVER, dtype=np.int64)
        self.holds[0, 0] = 0
        # Bins with the same options share what is computed of them.
        rooms: dict[int, list[tuple[int, Counts]]] = {}
        for bin_ in bins:
            key = id(bin_.options)
            if key not in rooms:
                rooms[key] = list(self._rooms(bin_))
            self._before.append(self.holds)
            self.holds = self._with(rooms[key])

    def _rooms(self, bin_: Bin) -> Iterator[tuple[int, Counts]]:
        """Yield what a bin can hold by pair of combinations, for options that do not count or do.

        Each comes with the rows by which these options move down in the table.
        """
        first, _, _ = self._mix.sums
        for counts in (False, True):
            options = [option for option in bin_.options if option.counts is counts]
            if options:
                rooms = np.full(self.holds.shape[1], NEVER, dtype=np.int64)
                rooms[[option.roles for option in options]] = [option.room for option in options]
                yield int(counts), rooms[first]

    def _with(self, rooms: Iterable[tuple[int, Counts]]) -> Counts:
        """Return the table with one more bin."""
        before, after = self.holds, self.holds.copy()
        _, second, begins = self._mix.sums
        sums = before.take(second, axis=1)
        for step, room in rooms:
            rows = len(before) - step
            best = np.maximum.reduceat(sums[:rows] + room, begins, axis=1)
            # A strict comparison keeps the earlier bins where a later one is only as good.
            better = best > np.maximum(after[step:], NEVER // 2)
            np.copyto(after[step:], best, where=better)
        return after

    def walk_back(self, *, count: int, target: int) -> list[BinChoice]:
        """Return the bins of the best solution for an entry of the table."""
        choices: list[BinChoice] = []
        afters = [*self._before[1:], self.holds]
        for bin_, before, after in zip(
            reversed(self._bins), reversed(self._before), reversed(afters), strict=True
        ):
            # The entry did not change when this bin was added, so the solution does not use the
            # bin.
            if before[count, target] == after[count, target]:
                continue
            for option in bin_.options:
                source, goal = self._mix.shifts[option.roles]
                (place,) = np.nonzero(goal == target)
                used = count - int(option.counts)
                if not place.size or used < 0:
                    continue
                rest = int(source[place[0]])
                if before[used, rest] + option.room == after[count, target]:
                    choices.append(BinChoice(identity=bin_.identity, option=option))
                    count, target = used, rest
                    break
        return choices
