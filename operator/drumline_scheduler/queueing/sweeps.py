"""Sweeps: gangs of one namespace of which a limited number hold slots at a time.

The limit is on gangs, not on GPUs, and each gang has its own limit. A gang starts while fewer gangs
of the sweep than its own limit hold slots. A gang holds slots if it is admitted (until it has left)
or nominated. Equal gangs of a sweep are one equivalence class. So one of a thousand is tried, and
its rejection is the answer of all. Within a cycle the number of gangs that hold slots only grows,
just as capacity only shrinks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from drumline_scheduler.decisions import BlockReason, Remedy, RemedyKind
from drumline_scheduler.model import Admitted, Gang
from drumline_scheduler.rejections import Rejection, counted, named

_WAIT: Final = Remedy(kind=RemedyKind.WAIT_FOR)


class SweepLimits:
    """The gangs of each sweep that hold slots.

    Args:
        admitted: the running gangs.
        nominated: pending gangs with nominated slots.
    """

    def __init__(self, *, admitted: Iterable[Admitted], nominated: Iterable[Gang]) -> None:
        self._holders: defaultdict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        """Keys of jobs by uid, by namespace and sweep."""
        for held in admitted:
            # A residual is the rest of a job that has left. It does not count as running.
            if held.gang.sweep and not held.is_residual:
                self.start(held.gang)
        for gang in nominated:
            self.start(gang)

    def rejection(self, gang: Gang) -> Rejection | None:
        """Return why a gang may not start beside the others of its sweep; None if it may."""
        if not gang.sweep:
            return None
        holders = self._holders.get((gang.namespace, gang.sweep), {})
        keys = tuple(sorted(key for uid, key in holders.items() if uid != gang.uid))
        if len(keys) < gang.sweep_limit:
            return None
        return Rejection(
            reason=BlockReason.SWEEP_LIMIT,
            message=f"sweep {gang.sweep} runs {counted(gang.sweep_limit, 'job')} at a time: waits"
            f" for one of {named(keys)}",
            blockers=keys,
            resource="jobs",
            needed=1,
            remedy=_WAIT,
        )

    def start(self, gang: Gang) -> None:
        """Record that a gang holds slots. It may have held them before, as nominated ones."""
        if gang.sweep:
            self._holders[gang.namespace, gang.sweep][gang.uid] = gang.key

    def withdraw(self, gang: Gang) -> None:
        """Record that a start of this cycle is undone."""
        if gang.sweep:
            self._holders[gang.namespace, gang.sweep].pop(gang.uid, None)
