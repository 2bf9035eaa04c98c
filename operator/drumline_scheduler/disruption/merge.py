"""Combine several announcements about one node into one disruption with one deadline.

A reclaim often shows as three signals (a cordon, a taint, a label). They are one disruption. The
most specific kind names it, and the earliest deadline counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from drumline_api.conditions import DisruptionKind
from drumline_scheduler.disruption.model import Disruption

AnnouncedDisruptions = dict[tuple[str, DisruptionKind], Disruption]
"""The disruptions announced for one node, by source and kind."""

_MOST_SPECIFIC_FIRST = (
    DisruptionKind.SPOT_RECLAIM,
    DisruptionKind.HARDWARE,
    DisruptionKind.UNHEALTHY,
    DisruptionKind.MAINTENANCE,
    DisruptionKind.SCALE_DOWN,
    DisruptionKind.DRAIN,
)
"""A cordon is last, because most of the other kinds include one."""


def merged(announced: Iterable[Disruption]) -> Disruption | None:
    """Return the disruption of a node; None if none is announced.

    Only the announcements with the highest confidence count.

    Example: Drain (certain, no deadline), SpotReclaim (certain, t=120), Maintenance (possible,
    t=60). The result is SpotReclaim, certain, t=120.
    """
    every = list(announced)
    if not every:
        return None
    highest = max(disruption.confidence for disruption in every)
    surest = [disruption for disruption in every if disruption.confidence == highest]
    # Ties between equal kinds go to the first source by name, so that the result is stable.
    named = min(
        surest,
        key=lambda disruption: (_MOST_SPECIFIC_FIRST.index(disruption.kind), disruption.source),
    )
    deadlines = [disruption.deadline for disruption in surest if disruption.deadline is not None]
    return replace(named, deadline=min(deadlines, default=None))


def keep_earliest_deadlines(
    before: AnnouncedDisruptions, seen: Iterable[Disruption]
) -> AnnouncedDisruptions:
    """Return the disruptions announced now, each with the earliest deadline that it ever had.

    Otherwise a deadline computed from the time of reading would move with every reading.

    Args:
        before: result of this function at the last reading of this node.
        seen: result of `announced_disruptions` now.
    """
    kept: AnnouncedDisruptions = {}
    for disruption in seen:
        key = (disruption.source, disruption.kind)
        # Only announcements that are still there count: a signal that
        # ended takes its deadline along.
        known = before.get(key)
        deadlines = [
            announced.deadline
            for announced in (disruption, known)
            if announced is not None and announced.deadline is not None
        ]
        kept[key] = replace(disruption, deadline=min(deadlines, default=None))
    return kept
