"""What one cycle leaves for the next, so that a cycle costs what changed since.

Everything here is derived from the arguments of earlier cycles and brought up to date by what
differs: objects that are the same (by identity) are taken to be unchanged, which holds of frozen
values. With and without a memory, and whatever it has seen before, the decisions are equal.

A memory serves one cycle at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from drumline.scheduling.decisions import Blocked
from drumline.scheduling.kinds import Kinds
from drumline.scheduling.model import Gang, Snapshot
from drumline.scheduling.refusals import Refusal
from drumline.scheduling.waiting import Waiting

_SLACK: Final = 1000
"""Answers to gangs that are gone are kept for so many."""


class Memory:
    """Opaque to everybody but the cycle; a new one knows nothing."""

    def __init__(self) -> None:
        self._waiting = Waiting(Kinds())
        self._capped: frozenset[str] = frozenset()
        self._refusals: dict[Refusal, Refusal] = {}
        self._same: dict[int, tuple[Refusal, Refusal]] = {}
        """By identity of a refusal of this cycle: it, and the first that was equal to it."""
        self._blocked: dict[str, tuple[Gang, Refusal, Blocked]] = {}

    def waiting(self, *, snapshot: Snapshot, pending: Iterable[Gang]) -> Waiting:
        """Those who wait now."""
        capped = frozenset(queue.name for queue in snapshot.queues if queue.user_limit)
        if capped != self._capped:
            self._waiting, self._capped = Waiting(Kinds(capped)), capped
        self._waiting.update(pending)
        return self._waiting

    def blocked(self, *, gang: Gang, refusal: Refusal) -> Blocked:
        """A refusal as the answer to a gang: the same object as long as nothing changes."""
        known = self._same.get(id(refusal))
        same = known[1] if known else self._canonical(refusal)
        before = self._blocked.get(gang.uid)
        if before is not None and before[0] is gang and before[1] is same:
            return before[2]
        answer = same.of(gang)
        self._blocked[gang.uid] = (gang, same, answer)
        return answer

    def close(self, waiting: Waiting) -> None:
        """Forget what only this cycle needs, and those who wait no longer."""
        self._same.clear()
        if len(self._blocked) > _SLACK + 2 * len(waiting.gangs):
            kept = {gang.uid for gang in waiting.gangs}
            self._blocked = {uid: it for uid, it in self._blocked.items() if uid in kept}
            self._refusals = {refusal: refusal for _, refusal, _ in self._blocked.values()}

    def _canonical(self, refusal: Refusal) -> Refusal:
        """Of equal refusals the first; known by identity for the rest of the cycle."""
        same = self._refusals.setdefault(refusal, refusal)
        self._same[id(refusal)] = (refusal, same)
        return same
