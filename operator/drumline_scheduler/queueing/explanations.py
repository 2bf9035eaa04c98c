"""Choose the gangs behind others that a cycle explains, under the strict rule.

Once a gang waits for capacity, no later one starts in its pool. What is computed for these is only
their answer: behind which gang they wait, or that they exceed a quota. A tenant may write any
number of kinds of them. So each namespace has a budget of answers in each cycle. The gangs that
come first have one in each cycle, and those without an answer for longest come next, one of each
namespace before a second one. Others keep the answer that they had.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from drumline_scheduler.model import Gang
from drumline_scheduler.queueing.deferral import Deferral
from drumline_scheduler.queueing.pending_gangs import PendingGangs
from drumline_scheduler.rejections import Rejection

FIRST: Final = 2
"""Answers of the first gangs of a namespace, in units of its budget for searches."""
_IN_TURN: Final = 1
"""Answers of the gangs that wait for one, in the same units."""
_NAMESPACES: Final = 2
"""Namespaces that together have as many answers as they may have alone."""
_GROUP_ANSWERS: Final = 4
"""Answers that the one of a group costs."""
_OF_ALL: Final = ""
"""Stands for all namespaces together."""


class Explanations:
    """The answers of one cycle to gangs behind others.

    Args:
        pending: all waiting gangs.
        budget: units of searches for each namespace. None: no limit.
        before: uids of gangs that earlier cycles left out, the longest left out first.
    """

    def __init__(self, *, pending: PendingGangs, budget: int | None, before: Sequence[str]) -> None:
        self._pending, self._budget = pending, budget
        self._turn = {uid: index for index, uid in enumerate(before)}
        self._used: Counter[str] = Counter()
        self._due: set[str] | None = None
        """Gangs and groups whose turn it is, by uid of a member. None: not computed yet."""
        self._left_out: list[str] = []

    @property
    def left_out(self) -> list[str]:
        """Uids of the gangs without an answer, the longest left out first."""
        return sorted(self._left_out, key=lambda uid: self._turn.get(uid, len(self._turn)))

    def late(self, gangs: Sequence[Gang]) -> Rejection | None:
        """Return the answer to a gang, or the gangs of a group, beyond the budget.

        None: their answer is computed.
        """
        if self._budget is None:
            return None
        if self._due is None:
            self._due = self._whose_turn(self._budget)
        if gangs[0].uid in self._due or _spend(self._used, gangs[0], most=FIRST * self._budget):
            return None
        self._left_out += [gang.uid for gang in gangs]
        return Deferral.rejection(gangs[0].namespace)

    def _whose_turn(self, budget: int) -> set[str]:
        """Return the uids of the gangs that were left out longest, as far as the budget suffices.

        All members of a group have their turn together.
        """
        due, used, groups = set[str](), Counter[str](), dict[tuple[str, str], bool]()
        for gang in self._line():
            key = (gang.namespace, gang.group or gang.uid)
            if key not in groups:
                groups[key] = _spend(used, gang, most=_IN_TURN * budget)
            if groups[key]:
                due.add(gang.uid)
        return due

    def _line(self) -> list[Gang]:
        """Return the gangs that were left out: the first ones of all namespaces, then second ones.

        In each of these parts the longest left out come first.
        """
        gangs = [self._pending.gang(uid) for uid in self._turn if uid in self._pending]
        before, parts = Counter[str](), list[int]()
        for gang in gangs:
            namespace = gang.namespace
            parts.append(before[namespace])
            before[namespace] += 1
        return [gangs[at] for at in sorted(range(len(gangs)), key=parts.__getitem__)]


def _spend(used: Counter[str], gang: Gang, *, most: int) -> bool:
    """Count the answer to a gang, or its group, if the budget suffices, and return whether."""
    answers = _GROUP_ANSWERS if gang.group else 1
    if used[gang.namespace] + answers > most or used[_OF_ALL] + answers > _NAMESPACES * most:
        return False
    used.update({gang.namespace: answers, _OF_ALL: answers})
    return True
