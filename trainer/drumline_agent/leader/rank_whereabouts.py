"""Describe where the ranks of a hung gang were. Pure.

Ranks in a collective come first:

    ranks 0, 2 wait in all_reduce (train.py, line 31); rank 1 has not entered it (data.py, line 12)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from drumline_agent.leader.hang_blame import named_ranks
from drumline_agent.protocol.rank_stacks import RankStack

MAX_GROUPS: Final = 4
"""Groups of ranks at one place that are named."""


def whereabouts(places: Iterable[RankStack], *, ranks: int) -> str:
    """Return the sentence; empty if no place is known.

    Args:
        places: the known places.
        ranks: number of ranks of the gang.
    """
    together: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in sorted(places, key=lambda place: place.rank):
        together[each.operation, each.place].append(each.rank)
    if not together:
        return ""
    # Ranks in a collective come first, the most common one before all others.
    groups = sorted(together.items(), key=lambda item: (not item[0][0], -len(item[1]), item[1]))
    operations = {operation for operation, _ in together if operation}
    texts = [
        _sentence(group, operation=operation, place=place, waited_for=operations)
        for (operation, place), group in groups[:MAX_GROUPS]
    ]
    left = sum(len(group) for _, group in groups[MAX_GROUPS:])
    if left:
        texts.append(f"{left} more ranks are elsewhere")
    silent = ranks - sum(map(len, together.values()))
    if silent > 0:
        texts.append(f"{silent} of {ranks} ranks showed no stack")
    if len(operations) > 1:
        texts.append("they call different collectives")
    return "; ".join(texts)


def _sentence(group: list[int], *, operation: str, place: str, waited_for: set[str]) -> str:
    is_one = len(group) == 1
    if operation:
        return f"{named_ranks(group)} {'waits' if is_one else 'wait'} in {operation} ({place})"
    if not waited_for:
        return f"{named_ranks(group)} {'is' if is_one else 'are'} at {place}"
    what = "any of them" if len(waited_for) > 1 else "it"
    return f"{named_ranks(group)} {'has' if is_one else 'have'} not entered {what} ({place})"
