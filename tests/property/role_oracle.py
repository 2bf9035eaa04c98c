"""The search for roles before it was bounded: all pairs of combinations, in plain Python.

It is the oracle of `test_role_search`. Nothing here is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from operator import mul, sub
from typing import Final

import numpy as np

from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.placement.bin_selection import NEVER, Bin, BinChoice
from drumline_scheduler.placement.slicing import NO_ROOM
from drumline_scheduler.placement.slots import PodShape
from drumline_scheduler.placement.topology import Counts

Frontier = tuple[int, ...]
_FEW: Final = 8


@dataclass(frozen=True, kw_only=True)
class OracleMix:
    """The role pods that are placed together with main pods."""

    requests: tuple[Vector, ...]
    """By role."""
    pods: tuple[int, ...]
    """By role: how many."""

    @cached_property
    def combinations(self) -> list[tuple[int, ...]]:
        """All combinations of role pods, in the order of a frontier."""
        return list(product(*(range(count + 1) for count in self.pods)))

    @cached_property
    def sums(self) -> tuple[Counts, Counts, Counts]:
        """All pairs of combinations that make up another one.

        The places of both, in the order of their sums, and where each sum begins.
        """
        place = {combination: i for i, combination in enumerate(self.combinations)}
        pairs = sorted(
            (place[total], place[part], place[tuple(map(sub, total, part))])
            for total in self.combinations
            for part in product(*(range(count + 1) for count in total))
        )
        table = np.array(pairs, dtype=np.int64)
        return table[:, 1], table[:, 2], np.flatnonzero(np.diff(table[:, 0], prepend=-1))

    @cached_property
    def shifts(self) -> list[tuple[Counts, Counts]]:
        """By combination: the places of all to which it can be added, and of what comes out."""
        first, second, begins = self.sums
        goals = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(first)))
        return [
            (second[first == part], goals[first == part]) for part in range(len(self.combinations))
        ]

    def joined(self, first_part: Frontier, second_part: Frontier) -> Frontier:
        """The frontier of two parts together. O(combinations squared)."""
        first, second, begins = self.sums
        both = np.array(first_part)[first] + np.array(second_part)[second]
        best = np.maximum.reduceat(both, begins)
        return tuple(np.maximum(best, NO_ROOM).tolist())

    def node(self, *, shape: PodShape, free: Vector, for_main: bool) -> Frontier:
        """The frontier of an eligible node."""
        lefts = [self._left(combination, free) for combination in self.combinations]
        return tuple(
            NO_ROOM if left is None else shape.slots_in(left) if for_main else 0 for left in lefts
        )

    def _left(self, combination: tuple[int, ...], free: Vector) -> Vector | None:
        """What is free beside some role pods; None: they do not fit."""
        for request, pods in zip(self.requests, combination, strict=True):
            if pods:
                free = tuple(map(sub, free, map(mul, request, (pods,) * len(request))))
        asked = [request for request, n in zip(self.requests, combination, strict=True) if n]
        if any(have < 0 and any(request[i] for request in asked) for i, have in enumerate(free)):
            return None
        return free


def fewest(
    *, mix: OracleMix, bins: Sequence[Bin], target: int, pods: int
) -> list[BinChoice] | None:
    """The fewest bins that hold a combination of role pods and so many main pods.

    Earlier bins are preferred.
    """
    for most in dict.fromkeys((min(_FEW, len(bins)), len(bins))):
        table = _Table(mix=mix, bins=bins, most=most)
        enough = np.flatnonzero(table.holds[:, target] >= pods)
        if enough.size:
            return table.walk_back(count=int(enough[0]), target=target)
    return None


def cheapest(*, mix: OracleMix, bins: Sequence[Bin], target: int, most: int) -> list[BinChoice]:
    """The bins that hold a combination of role pods and leave the most slots for main pods."""
    table = _Table(mix=mix, bins=bins, most=most)
    return table.walk_back(count=int(np.argmax(table.holds[:, target])), target=target)


class _Table:
    """The most main pods by number of bins used and combination of role pods."""

    def __init__(self, *, mix: OracleMix, bins: Sequence[Bin], most: int) -> None:
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
