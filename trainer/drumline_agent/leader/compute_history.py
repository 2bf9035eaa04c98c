"""Relative compute time of the ranks over the steps of an attempt, recorded by the leader.

A point is recorded once every measuring rank has a new measurement. The first measurement of each
rank is ignored, because caches fill and kernels are compiled in it. A rank is compared with the
median of the ranks with the same work (the same stage of the pipeline), if these are three or more.
With two it is impossible to tell which one is slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final

from drumline_agent.protocol.member_reports import RankView, StepCompute
from drumline_agent.protocol.membership import Membership
from drumline_contract import ComputePoint, GenerationRecord, rank_compute, step_series

_MIN_RANKS: Final = 3


class ComputeHistory:
    """The points of one record's gang in its present attempt."""

    def __init__(self, record: GenerationRecord) -> None:
        self._ranks = sum(member.ranks for member in record.members)
        self._membership: Membership | None = None
        self._first_steps: dict[int, int] = {}
        """Step of the first measurement, by rank."""
        self._points: tuple[ComputePoint, ...] = ()

    def after(
        self, views: Iterable[RankView], *, membership: Membership
    ) -> tuple[ComputePoint, ...]:
        """Return the attempt's points after these views of every rank, few and evenly spread."""
        if membership != self._membership:
            self._membership, self._first_steps, self._points = membership, {}, ()
        newest = {
            view.rank: view.compute
            for view in views
            if view.compute is not None and view.rank < self._ranks
        }
        for rank, compute in newest.items():
            self._first_steps.setdefault(rank, compute.step)
        # Every rank has measured since the last point, or since its first measurement.
        step = min((compute.step for compute in newest.values()), default=0)
        last = self._points[-1].step if self._points else 0
        if step > max(last, *self._first_steps.values(), 0):
            ratios = _ratios(newest)
            if ratios:
                every = [ratios.get(rank) for rank in range(self._ranks)]
                points = [*self._points, rank_compute.point_of(every, step=step)]
                most = rank_compute.RECENT_COMPUTE_POINTS
                self._points = step_series.thinned(points, most=most)
        return self._points


def _ratios(newest: Mapping[int, StepCompute]) -> dict[int, float]:
    """Return each rank's time relative to the median of the same work, without small groups."""
    stages: dict[int, list[int]] = defaultdict(list)
    for rank, compute in newest.items():
        stages[compute.stage].append(rank)
    ratios: dict[int, float] = {}
    for ranks in stages.values():
        usual = median(newest[rank].seconds for rank in ranks)
        if len(ranks) >= _MIN_RANKS and usual > 0:
            ratios |= {rank: newest[rank].seconds / usual for rank in ranks}
    return ratios
