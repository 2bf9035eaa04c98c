"""Which lawful seating is the best, found by looking at all of them.

The words of docs/architecture-scheduling.md, in the order in which they count: the narrowest level
from the preferred one up to the required one that has a domain for the gang; there the domain with
the fewest free GPUs; in it an even spread where one is asked for, else as few of the next narrower
domains as can hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.property.scheduling_placements import Seating, Table, path_at, required


def shortfalls(item: Table, assignment: Sequence[str]) -> list[str]:
    """In what a placement falls short of the best one."""
    gang = item.gang
    item = _with_known(item)
    seating = item.seating_of(assignment)
    wide_to_narrow = (None, *item.levels)
    asked = max(
        wide_to_narrow.index(gang.required_level), wide_to_narrow.index(gang.preferred_level)
    )
    for depth in range(asked, -1, -1):
        level = wide_to_narrow[depth]
        for slices in dict.fromkeys((gang.slices, required(gang))):
            rivals = list(item.lawful(level=level, slices=slices))
            if not rivals:
                continue
            if not item.is_sliced(seating, slices):
                return [f"{gang.key}: slices could be had in one {level}"]
            return _in_level(item, seating, rivals, level)
    return [f"{gang.key} has places where there are none"]


def _with_known(item: Table) -> Table:
    """Without the nodes whose domain of the required level nobody knows."""
    level = item.gang.required_level
    known = tuple(node for node in item.nodes if path_at(node, level, item.levels) is not None)
    return replace(item, nodes=known)


def _in_level(
    item: Table, seating: Seating, rivals: Sequence[Seating], level: str | None
) -> list[str]:
    gang, home = item.gang, item.home(seating, level)
    if home is None:
        return [f"{gang.key} is not in one {level} though it could be"]
    homes = {item.home(rival, level) for rival in rivals} - {None}
    least = min(item.free_gpus(path) for path in homes if path is not None)
    if item.free_gpus(home) != least:
        return [f"{gang.key}: {home} has {item.free_gpus(home)} GPUs free, another only {least}"]
    inside = [rival for rival in rivals if item.home(rival, level) == home]
    best = min(_unevenness(item, rival, level) for rival in inside)
    mine = _unevenness(item, seating, level)
    return [] if mine == best else [f"{gang.key} is spread {mine}, at best {best} in {home}"]


def _unevenness(item: Table, seating: Seating, level: str | None) -> tuple[int, ...]:
    """The less the better: domains used, and where an even spread is asked for, how uneven."""
    if (balanced := item.gang.balanced_level) is not None:
        shares = item.spread(seating, balanced, main_only=True)
        return (len(shares), -shares[0], shares[-1])
    below = (None, *item.levels).index(level)
    if below == len(item.levels):
        return ()
    return (len(item.spread(seating, item.levels[below], main_only=False)),)
