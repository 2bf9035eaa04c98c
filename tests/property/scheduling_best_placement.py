"""Which lawful seating is the best, found by looking at all of them.

The words of docs/scheduling.md, in the order in which they count: the narrowest level from the
preferred one up to the required one that has a domain for the gang; there the domain with the
fewest free GPUs; in it an even spread where one is asked for, else as few of the next narrower
domains as can hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.property.scheduling_placements import Seating, Table, path_at, required


def shortfalls(one: Table, assignment: Sequence[str]) -> list[str]:
    """In what a placement falls short of the best one."""
    gang = one.gang
    one = _with_known(one)
    seating = one.seating_of(assignment)
    wide_to_narrow = (None, *one.levels)
    asked = max(
        wide_to_narrow.index(gang.required_level), wide_to_narrow.index(gang.preferred_level)
    )
    for depth in range(asked, -1, -1):
        level = wide_to_narrow[depth]
        for slices in dict.fromkeys((gang.slices, required(gang))):
            rivals = list(one.lawful(level=level, slices=slices))
            if not rivals:
                continue
            if not one.is_sliced(seating, slices):
                return [f"{gang.key}: slices could be had in one {level}"]
            return _in_level(one, seating, rivals, level)
    return [f"{gang.key} has places where there are none"]


def _with_known(one: Table) -> Table:
    """Without the nodes whose domain of the required level nobody knows."""
    level = one.gang.required_level
    known = tuple(node for node in one.nodes if path_at(node, level, one.levels) is not None)
    return replace(one, nodes=known)


def _in_level(
    one: Table, seating: Seating, rivals: Sequence[Seating], level: str | None
) -> list[str]:
    gang, home = one.gang, one.home(seating, level)
    if home is None:
        return [f"{gang.key} is not in one {level} though it could be"]
    homes = {one.home(rival, level) for rival in rivals} - {None}
    least = min(one.free_gpus(path) for path in homes if path is not None)
    if one.free_gpus(home) != least:
        return [f"{gang.key}: {home} has {one.free_gpus(home)} GPUs free, another only {least}"]
    inside = [rival for rival in rivals if one.home(rival, level) == home]
    best = min(_unevenness(one, rival, level) for rival in inside)
    mine = _unevenness(one, seating, level)
    return [] if mine == best else [f"{gang.key} is spread {mine}, at best {best} in {home}"]


def _unevenness(one: Table, seating: Seating, level: str | None) -> tuple[int, ...]:
    """The less the better: domains used, and where an even spread is asked for, how uneven."""
    if (balanced := one.gang.balanced_level) is not None:
        shares = one.spread(seating, balanced, main_only=True)
        return (len(shares), -shares[0], shares[-1])
    below = (None, *one.levels).index(level)
    if below == len(one.levels):
        return ()
    return (len(one.spread(seating, one.levels[below], main_only=False)),)
