"""Sharing role pods and main pods out among parts: domains or nodes, each with what it can hold.

A table over (parts used, role pods placed) holds the most main pods that fit, part after part. So
the fewest parts that hold everything are found exactly. O(parts x options x parts used x
combinations of role pods).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from drumline.scheduling.placement.frontier import Frontier, RoleMix
from drumline.scheduling.placement.topology import Counts

NEVER: Final = -(1 << 50)
_FEW: Final = 8
"""So many parts are tried first: mostly that is enough, and the table stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BinOption:
    """What a part may get."""

    roles: int
    """The combination of role pods."""
    counts: bool
    """Whether it is one of the parts used."""
    room: int
    """Main pods that it then holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """A domain or node, and what it may get; it may always get nothing."""

    identity: int
    options: Sequence[BinOption]


@dataclass(frozen=True, slots=True, kw_only=True)
class BinChoice:
    """What a part gets."""

    identity: int
    option: BinOption


def whole_part(identity: int, frontier: Frontier) -> Bin:
    """A part that counts as used, whatever it gets."""
    options = [
        BinOption(roles=roles, counts=True, room=room)
        for roles, room in enumerate(frontier)
        if room > 0 or (roles and not room)
    ]
    return Bin(identity=identity, options=options)


def fewest(*, mix: RoleMix, parts: Sequence[Bin], target: int, pods: int) -> list[BinChoice] | None:
    """The fewest parts that hold a combination of role pods and so many main ones.

    Parts that come first are taken where others would do as well.
    """
    for most in dict.fromkeys((min(_FEW, len(parts)), len(parts))):
        table = _Table(mix=mix, parts=parts, most=most)
        enough = np.flatnonzero(table.holds[:, target] >= pods)
        if enough.size:
            return table.walk_back(count=int(enough[0]), target=target)
    return None


def cheapest(*, mix: RoleMix, parts: Sequence[Bin], target: int, most: int) -> list[BinChoice]:
    """The parts that hold a combination of role pods and leave the most room for main ones."""
    table = _Table(mix=mix, parts=parts, most=most)
    return table.walk_back(count=int(np.argmax(table.holds[:, target])), target=target)


class _Table:
    """The most main pods by number of parts used and combination of role pods."""

    def __init__(self, *, mix: RoleMix, parts: Sequence[Bin], most: int) -> None:
        self._mix = mix
        self._parts = parts
        self._choices: list[Counts] = []
        """By part: which option it gets in the best way to each entry; -1: nothing."""
        self.holds = np.full((most + 1, len(mix.combinations)), NEVER, dtype=np.int64)
        self.holds[0, 0] = 0
        for part in parts:
            self._add(part)

    def _add(self, part: Bin) -> None:
        before, after = self.holds, self.holds.copy()
        choice = np.full(before.shape, -1, dtype=np.int64)
        for place, option in enumerate(part.options):
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
        """Who gets what in the best way to an entry."""
        choices: list[BinChoice] = []
        for part, choice in zip(reversed(self._parts), reversed(self._choices), strict=True):
            place = int(choice[count, target])
            if place >= 0:
                option = part.options[place]
                choices.append(BinChoice(identity=part.identity, option=option))
                source, goal = self._mix.shifts[option.roles]
                target = int(source[int(np.flatnonzero(goal == target)[0])])
                count -= int(option.counts)
        return choices
