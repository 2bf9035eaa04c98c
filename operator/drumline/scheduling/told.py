"""What gangs were told in this cycle, so that those alike need not ask again.

Capacity and quota only shrink while gangs come forward, so a refusal stays true for every gang of
the same kind (`kinds`). It does not where somebody was sent away, or gave back what was kept for
it: then all is forgotten. Under the strict rule it is asked again whenever somebody new holds
others back.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from drumline.scheduling.backlog import Backlog
from drumline.scheduling.decisions import BlockReason
from drumline.scheduling.kinds import Kinds
from drumline.scheduling.model import Gang, Queue
from drumline.scheduling.refusals import Refusal


class Told:
    """Refusals by kind of gang, and by the kinds of a group's gangs."""

    def __init__(self, *, kinds: Kinds, queues: Mapping[str, Queue], backlog: Backlog) -> None:
        self._kinds = kinds
        self._backlog = backlog
        self._capped = {name for name, queue in queues.items() if queue.user_limit}
        self._refusals: dict[Hashable, Refusal] = {}
        self._groups: dict[Hashable, Mapping[int, Refusal]] = {}

    def refusal(self, gang: Gang) -> Refusal | None:
        """What gangs like this one were told."""
        key = self._key(gang)
        return self._refusals.get(key) or self._refusals.get((key, gang.max_runtime_seconds))

    def tell(self, *, gang: Gang, refusal: Refusal) -> None:
        """Remember it for those alike; where its length matters, only for those as long."""
        key = self._key(gang)
        if refusal.reason is BlockReason.WOULD_DELAY_RESERVATION:
            self._refusals[key, gang.max_runtime_seconds] = refusal
        else:
            self._refusals[key] = refusal

    def group(self, members: Sequence[Gang]) -> Mapping[int, Refusal] | None:
        """By position, what gangs of such a group were told that could not start together."""
        return self._groups.get(self.key(members))

    def tell_group(self, *, members: Sequence[Gang], refused: Mapping[int, Refusal]) -> None:
        """Remember it for groups alike."""
        self._groups[self.key(members)] = refused

    def forget(self) -> None:
        """There may be more room than before."""
        self._refusals.clear()
        self._groups.clear()

    def _key(self, gang: Gang) -> Hashable:
        kind, turn = self._kinds.of(gang), self._backlog.holding_back
        return (kind, turn, gang.user) if gang.queue in self._capped else (kind, turn)

    def key(self, members: Sequence[Gang]) -> Hashable:
        """Equal for gangs, or groups of them, that are alike and as long."""
        return tuple((self._key(gang), gang.max_runtime_seconds) for gang in members)
