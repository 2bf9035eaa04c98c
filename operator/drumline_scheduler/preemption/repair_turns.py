"""Put off repairs for which the time of a cycle does not suffice (`work`).

Searches for free slots cost little, except for costly gangs. Those and the searches for victims
take turns: some of the gangs that were put off longest are repaired whatever the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from drumline_scheduler.faults import Stage
from drumline_scheduler.model import Admitted, Gang
from drumline_scheduler.rejections import Rejection

_MOST_EXEMPT: Final = 3
"""Gangs put off by earlier cycles that are repaired whatever the time. The first may be costly."""


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

    @property
    def put_off(self) -> tuple[str, ...]:
        """Uids of the gangs that were put off, the longest put off first."""
        return tuple(sorted(self._put_off, key=lambda uid: self._turn.get(uid, len(self._turn))))

    def begin(self, broken: Sequence[Admitted]) -> None:
        """Choose the gangs that are repaired whatever the time.

        Args:
            broken: the broken gangs of the cycle.
        """
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
        if gang.uid in self._exempt or not self._is_late(f"{stage} {gang.uid}"):
            return False
        self._put_off[gang.uid] = None
        return True
