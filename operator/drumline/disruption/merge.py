"""Several announcements about one node -> what is to be done about it, and until when.

One reclaim often shows as three marks (a cordon, a taint, a label). They are one disruption: the
most telling kind names it, and the earliest deadline counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from drumline.api.conditions import DisruptionKind
from drumline.disruption.model import Disruption

AnnouncedDisruptions = dict[tuple[str, DisruptionKind], Disruption]
"""What is announced about one node, by source and kind."""

_TELLING = (
    DisruptionKind.SPOT_RECLAIM,
    DisruptionKind.HARDWARE,
    DisruptionKind.UNHEALTHY,
    DisruptionKind.MAINTENANCE,
    DisruptionKind.SCALE_DOWN,
    DisruptionKind.DRAIN,
)
"""Best explanation first: a cordon is part of most of the others."""


def merged(announced: Iterable[Disruption]) -> Disruption | None:
    """The one disruption of a node; None where nothing is announced.

    The surest announcements alone decide: its kind, its source, and the earliest deadline.
    """
    every = list(announced)
    if not every:
        return None
    sure = max(one.confidence for one in every)
    surest = [one for one in every if one.confidence == sure]
    chief = min(surest, key=lambda one: (_TELLING.index(one.kind), one.source))
    deadlines = [one.deadline for one in surest if one.deadline is not None]
    return replace(chief, deadline=min(deadlines, default=None))


def keep_earliest_deadlines(
    before: AnnouncedDisruptions, seen: Iterable[Disruption]
) -> AnnouncedDisruptions:
    """What is announced now, each with the earliest deadline it ever had.

    A deadline worked out from the time of looking would move with every look.

    Args:
        before: what `held` returned at the last look at this node.
        seen: what `signals_of` says now.
    """
    kept: AnnouncedDisruptions = {}
    for one in seen:
        key = (one.source, one.kind)
        known = before.get(key)
        deadlines = [d.deadline for d in (one, known) if d is not None and d.deadline is not None]
        kept[key] = replace(one, deadline=min(deadlines, default=None))
    return kept
