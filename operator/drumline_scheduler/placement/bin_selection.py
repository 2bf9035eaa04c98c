"""Which domains or nodes ("bins") hold role pods and main pods together: a knapsack table.

The table over (bins used, role pods placed) holds the most main pods that fit, bin after bin. So
the fewest bins that hold everything are found exactly. O(bins x options x bins used x combinations
of role pods).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from drumline_scheduler.placement.frontier import Frontier, RoleMix
from drumline_scheduler.placement.topology import Counts

NEVER: Final = -(1 << 50)
_FEW: Final = 8
"""Bins that are tried at first: mostly enough, and the table stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinOption:
    """What a bin may get."""

    roles: int
    """The combination of role pods."""
    counts: bool
    """Whether the bin counts as used."""
    room: int
    """Main pods that it can hold beside the role pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """A domain or node with its options, beside the one to get nothing."""

    identity: int
    options: Sequence[BinOption]


@dataclass(frozen=True, slots=True, kw_only=True)
class BinChoice:
    """The option that a bin gets."""

    identity: int
    option: BinOption


def bin_of_domain(identity: int, frontier: Frontier) -> Bin:
    """A bin that counts as used with each of its options."""
    options = [
        BinOption(roles=roles, counts=True, room=room)
        for roles, room in enumerate(frontier)
        if room > 0 or (roles and not room)
    ]
    return Bin(identity=identity, options=options)


def fewest(*, mix: RoleMix, bins: Sequence[Bin], target: int, pods: int) -> list[BinChoice] | None:
    """The fewest bins that hold a combination of role pods and so many main pods.

    Earlier bins are preferred.
    """
    for most in dict.fromkeys((min(_FEW, len(bins)), len(bins))):
        table = _Table(mix=mix, bins=bins, most=most)
        enough = np.flatnonzero(table.holds[:, target] >= pods)
        if enough.size:
            return table.walk_back(count=int(enough[0]), target=target)
    return None


def cheapest(*, mix: RoleMix, bins: Sequence[Bin], target: int, most: int) -> list[BinChoice]:
    """The bins that hold a combination of role pods and leave the most slots for main pods."""
    table = _Table(mix=mix, bins=bins, most=most)
    return table.walk_back(count=int(np.argmax(table.holds[:, target])), target=target)


class _Table:
    """The most main pods by number of bins used and combination of role pods."""

    def __init__(self, *, mix: RoleMix, bins: Sequence[Bin], most: int) -> None:
        self._mix = mix
        self._bins = bins
        self._choices: list[Counts] = []
        """By bin: its option in the best solution of each entry; -1: nothing."""
        self.holds = np.full((most + 1, len(mix.combinations)), NEVER, dtype=np.int64)
        self.holds[0, 0] = 0
        for bin_ in bins:
            self._add(bin_)

    def _add(self, bin_: Bin) -> None:
        before, after = self.holds, self.holds.copy()
        choice = np.full(before.shape, -1, dtype=np.int64)
        for place, option in enumerate(bin_.options):
            source, goal = self._mix.shifts[option.roles]
            step = int(option.counts)
            better = before[: len(before) - step, source] + option.room
            here = after[step:, goal]
            wins = better > np.maximum(here, NEVER // 2)
            after[step:, goal] = np.where(wins, better, here)
            choice[step:, goal] = np.where(wins, place, choice[step:, goal])
        self.holds = after
        self._choices.append(choice)

    def walk_back(self, *, count: int, target: int) -> list[BinChoice]:
        """The bins of the best solution of an entry."""
        choices: list[BinChoice] = []
        for bin_, choice in zip(reversed(self._bins), reversed(self._choices), strict=True):
            place = int(choice[count, target])
            if place >= 0:
                option = bin_.options[place]
                choices.append(BinChoice(identity=bin_.identity, option=option))
                source, goal = self._mix.shifts[option.roles]
                target = int(source[int(np.flatnonzero(goal == target)[0])])
                count -= int(option.counts)
        return choices
