"""Put off repairs for which the time of a cycle does not suffice (`work`).

Searches for free slots cost little, except for costly gangs. Those and the searches for victims
take turns after the loss of many gangs. The first ones of a cycle, and some of the gangs that were
put off longest, are repaired whatever the time. So a few broken gangs always come before any
pending gang.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from drumline_scheduler.faults import Stage
from drumline_scheduler.model import Admitted, Gang
from drumline_scheduler.rejections import Rejection

_MOST_EXEMPT: Final = 3
"""Gangs put off by earlier cycles that are repaired whatever the time. The first may be costly."""
_FIRST: Final = {Stage.REPAIR: 4, Stage.PREEMPT: 12}
"""Searches of a cycle that are made whatever the time."""


class RepairTurns:
    """The turns of one cycle.

    Args:
        is_late: whether the time of the repairs is over at a place.
        is_costly: whether a search for a gang takes long.
        not_tried: the answer to gangs of a namespace that are not tried.
        before: uids of gangs that earlier cycles put off, the longest put off first.
    """

    def __init__(
        self,
        *,
        is_late: Callable[[str], bool],
        is_costly: Callable[[Gang], bool],
        not_tried: Callable[[str], Rejection],
        before: Sequence[str],
    ) -> None:
        self._is_late = is_late
        self._is_costly = is_costly
        self._not_tried = not_tried
        self._turn = {uid: index for index, uid in enumerate(before)}
        self._exempt: set[str] = set()
        self._put_off: dict[str, None] = {}
        """Uids of the gangs that are put off."""
        self._made: Counter[Stage] = Counter()
        """Searches that were made."""
        self._passes = 0

    @property
    def put_off(self) -> tuple[str, ...]:
        """Uids of the gangs that were put off, the longest put off first."""
        return tuple(sorted(self._put_off, key=lambda uid: self._turn.get(uid, len(self._turn))))

    def begin(self, broken: Sequence[Admitted]) -> None:
        """Begin a pass over the broken gangs: choose those that are repaired whatever the time.

        Args:
            broken: the broken gangs of the cycle.
        """
        self._passes += 1
        self._put_off.clear()
        gangs = {held.gang.uid: held.gang for held in broken}
        line = [uid for uid in self._turn if uid in gangs]
        ordinary = [uid for uid in line[1:] if not self._is_costly(gangs[uid])]
        self._exempt = {*line[:1], *ordinary[: _MOST_EXEMPT - 1]}

    def late(self, gang: Gang) -> Rejection | None:
        """Return the answer to a costly gang that is put off. None: its slots are searched."""
        if self._is_costly(gang) and self.waits(gang, Stage.REPAIR):
            return self._not_tried(gang.namespace)
        return None

    def waits(self, gang: Gang, stage: Stage) -> bool:
        """Return whether a gang is put off, because the time of the repairs is over.

        Args:
            gang: the gang.
            stage: what the time is asked for.
        """
        # Each pass has time of its own, so its questions have names of their own.
        place = f"{stage} {gang.uid}{f' {self._passes}' if self._passes > 1 else ''}"
        is_made = self._made[stage] < _FIRST[stage] or gang.uid in self._exempt
        if is_made or not self._is_late(place):
            self._made[stage] += 1
            return False
        self._put_off[gang.uid] = None
        return True
