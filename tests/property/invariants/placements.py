"""I2 to I4: every gang has all its places or none, and every place is really there.

Positions count the pods of a gang's roles first; slices are every k main pods after these.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from drumline_scheduler.decisions import Decisions, Placed, Resized
from drumline_scheduler.model import Admitted, Gang, Snapshot
from drumline_scheduler.placement.eligibility import node_filter_of
from drumline_scheduler.resources import NOTHING, Resources


def capacity_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> list[str]:
    """I2: nodes that are given more than they have, or to a gang they are closed to."""
    nodes = {node.name: node for node in snapshot.nodes}
    violations: list[str] = []
    added: dict[str, Resources] = defaultdict(lambda: NOTHING)
    for gang, pool, position, name in new_places(
        snapshot=snapshot, pending=pending, decisions=decisions
    ):
        node = nodes.get(name)
        if node is None or node.pool != pool:
            violations.append(f"{gang.key} is placed on {name}, which is no node of {pool}")
        elif node_filter_of(gang).ineligibility(node):
            violations.append(f"{gang.key} is placed on {name}, which is closed to it")
        else:
            added[name] += gang.request_of(position)
    promised = promised_to(snapshot.admitted)
    for name, amounts in sorted(added.items()):
        free = nodes[name].allocatable - nodes[name].used - promised[name]
        if not amounts.fits_in(free):
            violations.append(f"node {name} is given {amounts.amounts()} but has {free.amounts()}")
    return violations


def gang_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> list[str]:
    """I3 and I4: gangs that are answered twice or never, in part, or moved without need."""
    answers = (*decisions.placed, *decisions.blocked, *decisions.resized)
    count = Counter(answer.uid for answer in answers)
    running = {held.gang.uid: held for held in snapshot.admitted}
    broken = {
        uid
        for uid, held in running.items()
        if held.lost and not held.leaving and (count[uid] or not _may_wait(held, running))
    }
    asked = {gang.uid for gang in pending} | broken
    violations = [
        f"{uid} is answered {count[uid]} times" for uid in sorted(asked) if count[uid] != 1
    ]
    grown = {resized.uid for resized in decisions.resized} - broken
    displaced = {uid for uid, held in running.items() if held.displaced and not held.leaving}
    moved = {each.uid for each in decisions.placed} & displaced
    violations += [f"{uid} was not asked for" for uid in count if uid not in asked | grown | moved]
    violations += [f"{uid} grows twice" for uid in sorted(grown) if count[uid] != 1]
    entry = Counter(each.uid for each in (*decisions.placed, *decisions.resized, *decisions.moves))
    entry.update(decisions.stay)
    entry.update(
        victim.uid for preemption in decisions.preemptions for victim in preemption.victims
    )
    violations += [
        f"{uid} is told {times} things" for uid, times in sorted(entry.items()) if times > 1
    ]
    gangs = {gang.uid: gang for gang in pending}
    early = {gang.uid for gang in pending if gang.after}
    violations += [
        f"{answer.key} starts before its predecessors have ended"
        for answer in (*decisions.placed, *decisions.preemptions, *decisions.reservations)
        if answer.uid in early
    ]
    for placed in decisions.placed:
        violations += _placed_problems(
            placed=placed, gang=gangs.get(placed.uid), held=running.get(placed.uid)
        )
    for item in decisions.resized:
        violations += _resized_problems(resized=item, held=running[item.uid])
    return violations


def _may_wait(held: Admitted, running: Mapping[str, Admitted]) -> bool:
    """Whether a broken gang needs no answer: surplus beside a broken gang, or backing off."""
    beside = running.get(held.gang.surplus_of)
    return bool(held.gang.surplus_of) and bool(held.gang.retry_at or beside is None or beside.lost)


def _placed_problems(*, placed: Placed, gang: Gang | None, held: Admitted | None) -> list[str]:
    sizes = (held.size,) if held else gang.legal_sizes if gang else ()
    own = held.gang if held else gang
    size = len(placed.assignment) - (own.extras if own else 0)
    if size not in sizes:
        return [f"{placed.key} gets {size} of {max(sizes, default=None)} places"]
    if held is not None and not _kept(held=held, placed=placed):
        return [f"{placed.key} is moved from places that it had not lost"]
    return []


def _resized_problems(*, resized: Resized, held: Admitted) -> list[str]:
    extras = held.gang.extras
    size = len(resized.kept) + len(resized.added) - extras
    survivors = set(range(len(held.assignment))) - held.lost
    violations: list[str] = []
    gives_up = not size and bool(held.gang.surplus_of)
    if not gives_up and (size not in held.gang.legal_sizes or size == held.size):
        violations.append(f"{resized.key} goes from {held.size} to {size} pods")
    if not set(resized.kept) <= survivors or list(resized.kept) != sorted(set(resized.kept)):
        violations.append(f"{resized.key} keeps places that it had lost")
    if held.leaving or (size > held.size and held.lost):
        violations.append(f"{resized.key} grows while it leaves or is broken")
    if resized.kept[:extras] != tuple(range(extras)):
        violations.append(f"{resized.key} goes on without all pods of its roles")
    if size > held.size and len(resized.kept) != len(held.assignment):
        violations.append(f"{resized.key} gives places up to grow")
    return violations


def topology_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> list[str]:
    """Gangs whose new places are not in one known domain of the level that they or a slice require.

    New places beside others have to be where some of these are.
    """
    levels = {pool.name: pool.levels for pool in snapshot.pools}
    domains = {node.name: node.domains for node in snapshot.nodes}
    violations: list[str] = []
    for gang, pool, seats in _seats(snapshot=snapshot, pending=pending, decisions=decisions):
        known = levels.get(pool, ())
        for level, positions in _together(gang, seats):
            depth = known.index(level) + 1 if level in known else 0
            new = {domains.get(seats.fresh[i], ())[:depth] for i in positions if i in seats.fresh}
            old = {domains.get(seats.kept[i], ())[:depth] for i in positions if i in seats.kept}
            path = next(iter(new), None)
            if path is None:
                continue
            if not path or len(new) > 1 or len(path) < depth or not path[-1]:
                violations.append(
                    f"{gang.key} requires one {level} and is spread over {sorted(new)}"
                )
            elif old and path not in old:
                violations.append(f"{gang.key} requires one {level} and is repaired outside of it")
    return violations


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seats:
    """Node names by position."""

    fresh: Mapping[int, str]
    kept: Mapping[int, str]


def _together(gang: Gang, seats: _Seats) -> Iterator[tuple[str, Sequence[int]]]:
    """Levels, and the positions that have to share a domain of them."""
    size = len(seats.fresh) + len(seats.kept)
    if gang.required_level:
        yield gang.required_level, range(size)
    for piece in gang.slices:
        if piece.required:
            for first in range(gang.extras, size, piece.pods):
                yield piece.level, range(first, first + piece.pods)


def _seats(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> Iterator[tuple[Gang, str, _Seats]]:
    """Each gang that gets places, the pool, its new places and those it keeps."""
    running = {held.gang.uid: held for held in snapshot.admitted}
    gangs = {gang.uid: gang for gang in pending}
    gangs |= {uid: held.gang for uid, held in running.items()}
    for placed in decisions.placed:
        if placed.uid in gangs:
            new = set(placed.replaced) or set(range(len(placed.assignment)))
            places = dict(enumerate(placed.assignment))
            seats = _Seats(
                fresh={i: name for i, name in places.items() if i in new},
                kept={i: name for i, name in places.items() if i not in new},
            )
            yield gangs[placed.uid], placed.pool, seats
    for resized in decisions.resized:
        held = running[resized.uid]
        seats = _Seats(
            fresh=dict(enumerate(resized.added, start=len(resized.kept))),
            kept={new: held.assignment[old] for new, old in enumerate(resized.kept)},
        )
        yield held.gang, resized.pool, seats


def new_places(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> Iterator[tuple[Gang, str, int, str]]:
    """Gang, pool, position and node of every place that this cycle newly gives to somebody."""
    for gang, pool, seats in _seats(snapshot=snapshot, pending=pending, decisions=decisions):
        for position, name in seats.fresh.items():
            yield gang, pool, position, name


def promised_to(admitted: Iterable[Admitted]) -> dict[str, Resources]:
    """By node: what gangs will use there whose pods are not bound yet."""
    amounts: dict[str, Resources] = defaultdict(lambda: NOTHING)
    for held in admitted:
        for position in held.reserved - held.lost:
            amounts[held.assignment[position]] += held.gang.request_of(position)
    return amounts


def _kept(*, held: Admitted, placed: Placed) -> bool:
    free = held.lost or held.displaced
    return frozenset(placed.replaced) == free and all(
        placed.assignment[index] == name
        for index, name in enumerate(held.assignment)
        if index not in free
    )
