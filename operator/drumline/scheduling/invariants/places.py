"""I2 to I4: every gang has all its places or none, and every place is really there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from drumline.scheduling.decisions import Decisions, Placed, Resized
from drumline.scheduling.eligibility import admission_of
from drumline.scheduling.model import Admitted, Gang, Snapshot
from drumline.scheduling.resources import NOTHING, Resources


def capacity_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> list[str]:
    """I2: nodes that are given more than they have, or to a gang they are closed to."""
    nodes = {node.name: node for node in snapshot.nodes}
    found: list[str] = []
    added: dict[str, Resources] = defaultdict(lambda: NOTHING)
    for gang, pool, name in new_places(snapshot=snapshot, pending=pending, decisions=decisions):
        node = nodes.get(name)
        if node is None or node.pool != pool:
            found.append(f"{gang.key} is placed on {name}, which is no node of {pool}")
        elif admission_of(gang).refusal(node):
            found.append(f"{gang.key} is placed on {name}, which is closed to it")
        else:
            added[name] += gang.per_pod
    promised = promised_to(snapshot.admitted)
    for name, amounts in sorted(added.items()):
        free = nodes[name].allocatable - nodes[name].used - promised[name]
        if not amounts.fits_in(free):
            found.append(f"node {name} is given {amounts.amounts()} but has {free.amounts()}")
    return found


def gang_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> list[str]:
    """I3 and I4: gangs that are answered twice or never, in part, or moved without need."""
    answers = (*decisions.placed, *decisions.blocked, *decisions.resized)
    count = Counter(one.uid for one in answers)
    running = {held.gang.uid: held for held in snapshot.admitted}
    broken = {uid for uid, held in running.items() if held.lost and not held.leaving}
    asked = {gang.uid for gang in pending} | broken
    found = [f"{uid} is answered {count[uid]} times" for uid in sorted(asked) if count[uid] != 1]
    grown = {one.uid for one in decisions.resized} - broken
    found += [f"{uid} was not asked for" for uid in count if uid not in asked | grown]
    found += [f"{uid} grows twice" for uid in sorted(grown) if count[uid] != 1]
    gangs = {gang.uid: gang for gang in pending}
    for one in decisions.placed:
        found += _placed_problems(placed=one, gang=gangs.get(one.uid), held=running.get(one.uid))
    for one in decisions.resized:
        found += _resized_problems(resized=one, held=running[one.uid])
    return found


def _placed_problems(*, placed: Placed, gang: Gang | None, held: Admitted | None) -> list[str]:
    sizes = (held.size,) if held else gang.legal_sizes if gang else ()
    size = len(placed.assignment)
    if size not in sizes:
        return [f"{placed.key} gets {size} of {max(sizes, default=None)} places"]
    if held is not None and not _kept(held=held, placed=placed):
        return [f"{placed.key} is moved from places that it had not lost"]
    return []


def _resized_problems(*, resized: Resized, held: Admitted) -> list[str]:
    size = len(resized.kept) + len(resized.added)
    survivors = set(range(held.size)) - held.lost
    found: list[str] = []
    if size not in held.gang.legal_sizes or size == held.size:
        found.append(f"{resized.key} goes from {held.size} to {size} pods")
    if not set(resized.kept) <= survivors or list(resized.kept) != sorted(set(resized.kept)):
        found.append(f"{resized.key} keeps places that it had lost")
    if held.leaving or (size > held.size and held.lost):
        found.append(f"{resized.key} grows while it leaves or is broken")
    if size > held.size and len(resized.kept) != held.size:
        found.append(f"{resized.key} gives places up to grow")
    return found


def topology_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> list[str]:
    """Gangs whose new places are not in one known domain of the level they require.

    New places beside others have to be where some of these are.
    """
    levels = {pool.name: pool.levels for pool in snapshot.pools}
    domains = {node.name: node.domains for node in snapshot.nodes}
    found: list[str] = []
    for gang, pool, fresh, kept in _groups(snapshot=snapshot, pending=pending, decisions=decisions):
        level, known = gang.required_level, levels.get(pool, ())
        if level is None or not fresh:
            continue
        depth = known.index(level) + 1 if level in known else 0
        new = {domains.get(name, ())[:depth] for name in fresh}
        old = {domains.get(name, ())[:depth] for name in kept}
        path = next(iter(new))
        if not path or len(new) > 1 or len(path) < depth or not path[-1]:
            found.append(f"{gang.key} requires one {level} and is spread over {sorted(new)}")
        elif old and path not in old:
            found.append(f"{gang.key} requires one {level} and is repaired outside of it")
    return found


def _groups(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> Iterator[tuple[Gang, str, list[str], list[str]]]:
    """Each gang that gets places, the pool, its new places and those it keeps."""
    running = {held.gang.uid: held for held in snapshot.admitted}
    gangs = {gang.uid: gang for gang in pending}
    gangs |= {uid: held.gang for uid, held in running.items()}
    for one in decisions.placed:
        if one.replaced:
            kept = [n for i, n in enumerate(one.assignment) if i not in one.replaced]
            yield gangs[one.uid], one.pool, [one.assignment[i] for i in one.replaced], kept
        elif one.uid in gangs:
            yield gangs[one.uid], one.pool, list(one.assignment), []
    for one in decisions.resized:
        held = running[one.uid]
        yield held.gang, one.pool, list(one.added), [held.assignment[i] for i in one.kept]


def new_places(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> Iterator[tuple[Gang, str, str]]:
    """Gang, pool and node of every place that this cycle newly gives to somebody."""
    for gang, pool, fresh, _ in _groups(snapshot=snapshot, pending=pending, decisions=decisions):
        for name in fresh:
            yield gang, pool, name


def promised_to(admitted: Iterable[Admitted]) -> dict[str, Resources]:
    """By node: what gangs will use there whose pods are not bound yet."""
    amounts: dict[str, Resources] = defaultdict(lambda: NOTHING)
    for held in admitted:
        for index in held.reserved - held.lost:
            amounts[held.assignment[index]] += held.gang.per_pod
    return amounts


def _kept(*, held: Admitted, placed: Placed) -> bool:
    return frozenset(placed.replaced) == held.lost and all(
        placed.assignment[index] == name
        for index, name in enumerate(held.assignment)
        if index not in held.lost
    )
