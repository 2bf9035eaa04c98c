"""What must hold of every cycle, as predicates that share no arithmetic with the engine.

Each returns the violations it finds as sentences, so a test (or a replay of a captured snapshot)
says what is wrong and not only that something is. They look at a snapshot and its decisions only:

* I1 `quota_violations`: no queue is taken above its nominal quota.
* I2 `capacity_violations`: no node is given more than it has, foreign and terminating pods counted,
  and none that is closed to the gang.
* I3, I4 `gang_violations`: every gang is answered exactly once, with all its places or none, and a
  repair leaves the places that were not lost.
* `topology_violations`: a required level is kept.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from drumline.scheduling.decisions import Decisions, Placed
from drumline.scheduling.eligibility import admission_of
from drumline.scheduling.model import Admitted, Gang, Snapshot
from drumline.scheduling.resources import NOTHING, Resources


def violations(
    *, snapshot: Snapshot, pending: Iterable[Gang], decisions: Decisions
) -> tuple[str, ...]:
    """Every violation of I1 to I4 by one cycle's decisions."""
    waiting = tuple(pending)
    gangs = {gang.uid: gang for gang in waiting}
    gangs |= {held.gang.uid: held.gang for held in snapshot.admitted}
    return (
        *quota_violations(snapshot=snapshot, gangs=gangs, placed=decisions.placed),
        *capacity_violations(snapshot=snapshot, gangs=gangs, placed=decisions.placed),
        *gang_violations(snapshot=snapshot, pending=waiting, decisions=decisions),
        *topology_violations(snapshot=snapshot, gangs=gangs, placed=decisions.placed),
    )


def quota_violations(
    *, snapshot: Snapshot, gangs: dict[str, Gang], placed: Sequence[Placed]
) -> list[str]:
    """I1: queues that this cycle takes above their nominal quota of a pool."""
    usage: Counter[tuple[str, str]] = Counter()
    for held in snapshot.admitted:
        usage[held.gang.queue, held.pool] += held.gang.gpus
    grown: set[tuple[str, str]] = set()
    for one in placed:
        gang = gangs[one.uid]
        if not one.replaced and gang.gpus:
            usage[gang.queue, one.pool] += gang.gpus
            grown.add((gang.queue, one.pool))
    nominal = {queue.name: queue.nominal for queue in snapshot.queues}
    return [
        f"queue {queue} holds {usage[queue, pool]} GPUs of pool {pool}, above its nominal quota"
        for queue, pool in sorted(grown)
        if usage[queue, pool] > nominal[queue].get(pool, 0)
    ]


def capacity_violations(
    *, snapshot: Snapshot, gangs: dict[str, Gang], placed: Sequence[Placed]
) -> list[str]:
    """I2: nodes that are given more than they have, or to a gang they are closed to."""
    nodes = {node.name: node for node in snapshot.nodes}
    found: list[str] = []
    added: dict[str, Resources] = defaultdict(lambda: NOTHING)
    for one in placed:
        gang = gangs[one.uid]
        for name in fresh_places(one):
            node = nodes.get(name)
            if node is None or node.pool != one.pool:
                found.append(f"{one.key} is placed on {name}, which is no node of {one.pool}")
            elif admission_of(gang).refusal(node):
                found.append(f"{one.key} is placed on {name}, which is closed to it")
            else:
                added[name] += gang.per_pod
    promised = _promised(snapshot.admitted)
    for name, amounts in sorted(added.items()):
        free = nodes[name].allocatable - nodes[name].used - promised[name]
        if not amounts.fits_in(free):
            found.append(f"node {name} is given {amounts.amounts()} but has {free.amounts()}")
    return found


def gang_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> list[str]:
    """I3 and I4: gangs that are answered twice or never, in part, or moved without need."""
    answers = Counter(one.uid for one in (*decisions.placed, *decisions.blocked))
    broken = {held.gang.uid: held for held in snapshot.admitted if held.lost}
    sizes = {gang.uid: gang.nodes for gang in pending}
    sizes |= {uid: held.gang.nodes for uid, held in broken.items()}
    found = [f"{uid} is answered {answers[uid]} times" for uid in sizes if answers[uid] != 1]
    found += [f"{uid} was not asked for" for uid in answers if uid not in sizes]
    for one in decisions.placed:
        if len(one.assignment) != sizes.get(one.uid):
            found.append(f"{one.key} gets {len(one.assignment)} of {sizes.get(one.uid)} places")
        held = broken.get(one.uid)
        if held is not None and not _kept(held=held, placed=one):
            found.append(f"{one.key} is moved from places that it had not lost")
    return found


def topology_violations(
    *, snapshot: Snapshot, gangs: dict[str, Gang], placed: Sequence[Placed]
) -> list[str]:
    """Gangs whose new places are not in one known domain of the level they require.

    The new places of a repair have to be where some of the gang's other places are.
    """
    levels = {pool.name: pool.levels for pool in snapshot.pools}
    domains = {node.name: node.domains for node in snapshot.nodes}
    found: list[str] = []
    for one in placed:
        level, known = gangs[one.uid].required_level, levels.get(one.pool, ())
        if level is None:
            continue
        depth = known.index(level) + 1 if level in known else 0
        paths = [domains.get(name, ())[:depth] for name in one.assignment]
        fresh = set(paths if not one.replaced else (paths[index] for index in one.replaced))
        kept = {path for i, path in enumerate(paths) if one.replaced and i not in one.replaced}
        path = next(iter(fresh))
        if not path or len(fresh) > 1 or len(path) < depth or not path[-1]:
            found.append(f"{one.key} requires one {level} and is spread over {sorted(fresh)}")
        elif kept and path not in kept:
            found.append(f"{one.key} requires one {level} and is repaired outside of it")
    return found


def fresh_places(placed: Placed) -> list[str]:
    """The nodes that this decision newly gives to a gang, one entry for each pod."""
    if not placed.replaced:
        return list(placed.assignment)
    return [placed.assignment[index] for index in placed.replaced]


def _promised(admitted: Iterable[Admitted]) -> dict[str, Resources]:
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
