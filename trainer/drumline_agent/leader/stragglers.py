"""Detection of members that compute more slowly than the others.

The leader uses each rank's own compute time only. A rank that waits for a slow peer is not slow. A
rank is compared with the median of the ranks with the same work (the same stage of the pipeline),
as a mean over the last few measurements. A member is slow once one of its ranks has been `SLOWER`
than the median for `STEADY_STEPS` steps without a break. Nothing is restarted, but the operator is
notified.

Example: four pods of one rank compute 1.0, 1.0, 1.02 and 1.3 s in each step. The median is 1.01 s,
and the fourth is slow by 29 % twenty steps later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from drumline_agent.protocol.member_reports import RankView, StepCompute
from drumline_agent.protocol.membership import Membership
from drumline_contract import MAX_SLOW, GenerationRecord, SlowMember, most_slow
from drumline_contract.rank_compute import SLOWER

STEADY_STEPS: Final = 20
MIN_MEMBERS: Final = 3
"""Minimum number of members. With two it is impossible to tell which one is slow."""
_NEWEST_WEIGHT: Final = 0.3


@dataclass(slots=True)
class _Pace:
    """Compute time of one rank in this membership."""

    newest: StepCompute
    mean: float | None = None
    """None after the first measurement, in which caches fill and kernels are compiled."""
    slow_from: int | None = None
    """The step since which it is slow."""

    def note(self, compute: StepCompute) -> None:
        if compute.step <= self.newest.step:
            return
        self.newest = compute
        old = compute.seconds if self.mean is None else self.mean
        self.mean = old + _NEWEST_WEIGHT * (compute.seconds - old)


class Stragglers:
    """Compares the ranks of one record's gang."""

    def __init__(self, record: GenerationRecord) -> None:
        self._member_of = [member.index for member in record.members for _ in range(member.ranks)]
        """Member index by rank."""
        self._most_slow = most_slow(len(record.members))
        self._membership: Membership | None = None
        self._paces: dict[int, _Pace] = {}

    def after(self, views: Iterable[RankView], *, membership: Membership) -> tuple[SlowMember, ...]:
        """Return the slow members, slowest first, after these views of every rank.

        The result is empty if more than a quarter of the members are slow: then the job is slow.
        """
        if membership != self._membership:
            self._membership, self._paces = membership, {}
        for view in views:
            if view.compute is not None and view.rank < len(self._member_of):
                pace = self._paces.setdefault(view.rank, _Pace(view.compute))
                pace.note(view.compute)
        stages: dict[int, list[int]] = defaultdict(list)
        for rank, pace in self._paces.items():
            if pace.mean is not None:
                stages[pace.newest.stage].append(rank)
        slow: dict[int, SlowMember] = {}
        for ranks in stages.values():
            for member in self._slow_in(ranks):
                known = slow.get(member.index)
                if known is None or known.percent < member.percent:
                    slow[member.index] = member
        if len(slow) > self._most_slow:
            return ()
        worst = sorted(slow.values(), key=lambda member: (-member.percent, member.index))
        return tuple(worst[:MAX_SLOW])

    def _slow_in(self, ranks: Sequence[int]) -> Iterable[SlowMember]:
        """Yield the slow members among ranks with the same work."""
        if len({self._member_of[rank] for rank in ranks}) < MIN_MEMBERS:
            return
        usual = median(self._paces[rank].mean or 0.0 for rank in ranks)
        for rank in ranks:
            pace = self._paces[rank]
            ratio = (pace.mean or 0.0) / usual if usual > 0 else 1.0
            if ratio < SLOWER:
                pace.slow_from = None
                continue
            if pace.slow_from is None:
                pace.slow_from = pace.newest.step
            steps = pace.newest.step - pace.slow_from
            if steps >= STEADY_STEPS:
                yield SlowMember(
                    index=self._member_of[rank], percent=round(100 * (ratio - 1)), steps=steps
                )
