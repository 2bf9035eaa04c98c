"""I6: places that are kept for those who wait will be theirs once everybody is gone who has to go.

Kept are the places of gangs that wait for their victims, the new ones of broken gangs that do, and
those to which gangs move.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from drumline_scheduler.decisions import BlockReason, Decisions, Preemption
from drumline_scheduler.model import Gang, Snapshot
from drumline_scheduler.resources import NOTHING, Resources
from tests.property.invariants.placements import new_places, promised_to


@dataclass(frozen=True, slots=True, kw_only=True)
class NominatedPlacement:
    """Places that are kept for a gang after this cycle."""

    gang: Gang
    pool: str
    places: Mapping[int, str]
    """Nodes by position."""
    moves: bool = False
    """Whether it runs elsewhere until then."""


def nominated_placements(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> list[NominatedPlacement]:
    """All places that are kept after this cycle."""
    waits = {
        blocked.uid
        for blocked in decisions.blocked
        if blocked.reason is BlockReason.WAITING_FOR_VICTIMS
    }
    fresh = {preemption.uid: preemption for preemption in decisions.preemptions}
    running = {held.gang.uid: held for held in snapshot.admitted}
    kept: list[NominatedPlacement] = []
    for gang in pending:
        if gang.uid in waits:
            new = fresh.get(gang.uid)
            nodes = new.assignment if new else gang.nominated
            pool = new.pool if new else gang.nominated_pool
            kept.append(NominatedPlacement(gang=gang, pool=pool, places=dict(enumerate(nodes))))
    for uid in sorted(waits & running.keys()):
        held = running[uid]
        places = _replacements(fresh[uid]) if uid in fresh else held.nominated
        kept.append(NominatedPlacement(gang=held.gang, pool=held.pool, places=places))
    for held in snapshot.admitted:
        if held.leaving and held.nominated and held.gang.uid not in decisions.stay:
            pool = held.nominated_pool or held.pool
            kept.append(
                NominatedPlacement(gang=held.gang, pool=pool, places=held.nominated, moves=True)
            )
    return kept + _moves(snapshot=snapshot, decisions=decisions)


def broken_nominations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> list[str]:
    """Kept places that will not be there once everybody is gone who was told to leave."""
    free = _free_then(snapshot=snapshot, decisions=decisions)
    taken: dict[str, Resources] = defaultdict(lambda: NOTHING)
    for gang, _, position, name in new_places(
        snapshot=snapshot, pending=pending, decisions=decisions
    ):
        taken[name] += gang.request_of(position)
    kept = nominated_placements(snapshot=snapshot, pending=pending, decisions=decisions)
    for each in kept:
        for position, name in each.places.items():
            taken[name] += each.gang.request_of(position)
    violations: list[str] = []
    for item in kept:
        nodes = item.places.values()
        short = [name for name in nodes if name not in free or not taken[name].fits_in(free[name])]
        if short:
            violations.append(f"{item.gang.key} waits in vain for {short[0]}")
    return violations


def stays(*, snapshot: Snapshot, decisions: Decisions) -> dict[str, frozenset[int]]:
    """By uid: positions that running gangs keep once all have left who were told to."""
    violations = {
        held.gang.uid: frozenset[int]()
        if held.leaving and held.gang.uid not in decisions.stay
        else frozenset(range(len(held.assignment))) - held.giving_up
        for held in snapshot.admitted
    }
    for preemption in decisions.preemptions:
        violations |= {victim.uid: frozenset(victim.kept) for victim in preemption.victims}
    return violations | {move.uid: frozenset[int]() for move in decisions.moves}


def _free_then(*, snapshot: Snapshot, decisions: Decisions) -> dict[str, Resources]:
    """By node: what is free once all have left who were told to, the places kept left aside."""
    left = stays(snapshot=snapshot, decisions=decisions)
    free = {node.name: node.allocatable - node.used + node.terminating for node in snapshot.nodes}
    for held in snapshot.admitted:
        bound = set(range(len(held.assignment))) - held.lost - held.reserved
        for position in bound - left[held.gang.uid]:
            if held.assignment[position] in free:
                free[held.assignment[position]] += held.gang.request_of(position)
    staying = (
        replace(held, reserved=held.reserved & left[held.gang.uid]) for held in snapshot.admitted
    )
    for name, amounts in promised_to(staying).items():
        if name in free:
            free[name] -= amounts
    return free


def _replacements(preemption: Preemption) -> dict[int, str]:
    return {i: preemption.assignment[i] for i in preemption.replaced}


def _moves(*, snapshot: Snapshot, decisions: Decisions) -> list[NominatedPlacement]:
    """The places to which gangs move from now on."""
    running = {held.gang.uid: held.gang for held in snapshot.admitted}
    targets = [(move.uid, move.pool, move.assignment) for move in decisions.moves]
    for preemption in decisions.preemptions:
        targets += [(v.uid, v.moves_to_pool, v.moves_to) for v in preemption.victims if v.moves_to]
    return [
        NominatedPlacement(gang=running[uid], pool=pool, places=dict(enumerate(nodes)), moves=True)
        for uid, pool, nodes in targets
    ]
