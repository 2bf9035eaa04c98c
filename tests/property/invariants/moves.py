"""Moves that nobody asked for: whole gangs, whole budgets, and more free domains than before.

The numbers of free domains, broadest level first, rise with each cycle's moves in a pool; a move
changes nothing in what queues hold. So no chain of moves comes back to where it began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from drumline_scheduler.decisions import Decisions, Move, MoveReason
from drumline_scheduler.model import Admitted, Gang, Pool, Snapshot
from tests.property.invariants.nominations import nominated_placements, stays
from tests.property.invariants.preemptions import hurried


def move_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions, now: float
) -> list[str]:
    """Moves of gangs that may not be moved, and moves that free nothing."""
    running = {held.gang.uid: held for held in snapshot.admitted}
    victims = {victim.uid for preemption in decisions.preemptions for victim in preemption.victims}
    violations: list[str] = []
    for move in decisions.moves:
        held = running[move.uid]
        problems = {
            "leaves already": held.leaving or move.uid in victims,
            "may not be moved": not held.preemptible,
            "is broken": bool(held.lost or held.giving_up),
            "has not run long enough": hurried(held, snapshot=snapshot, now=now),
            "moves in part": len(move.assignment) != len(held.assignment),
        }
        violations += [f"{move.key} moves and {what}" for what, true in problems.items() if true]
    for pool in snapshot.pools:
        freeing = [
            move
            for move in decisions.moves
            if move.pool == pool.name and move.why is MoveReason.DEFRAGMENTATION
        ]
        if freeing:
            violations += _no_gain(pool, snapshot, pending, decisions, freeing)
    return violations


def _no_gain(
    pool: Pool,
    snapshot: Snapshot,
    pending: Sequence[Gang],
    decisions: Decisions,
    moves: Sequence[Move],
) -> list[str]:
    """Whether the free domains of a pool are not more than before."""
    moved = {move.uid for move in moves}
    kept = stays(snapshot=snapshot, decisions=decisions)
    before = [node for held in snapshot.admitted for node in _nodes(held, kept=None)]
    after = [node for held in snapshot.admitted for node in _nodes(held, kept=kept[held.gang.uid])]
    given = nominated_placements(snapshot=snapshot, pending=pending, decisions=decisions)
    after += [name for each in given for name in each.places.values()]
    rest = {name for placed in decisions.placed for name in placed.assignment}
    rest |= {name for resized in decisions.resized for name in resized.added} | _foreign(snapshot)
    was = _free_domains(pool, snapshot, used={*before, *rest})
    will = _free_domains(pool, snapshot, used={*after, *rest})
    if not will > was:
        return [f"moves of {len(moved)} gangs in pool {pool.name} free nothing: {was} to {will}"]
    return []


def _nodes(held: Admitted, *, kept: frozenset[int] | None) -> Iterable[str]:
    for position, name in held.survivors.items():
        if kept is None or position in kept:
            yield name


def _foreign(snapshot: Snapshot) -> set[str]:
    """Nodes on which pods of no admitted gang hold GPUs."""
    used = Counter({node.name: node.used.gpus for node in snapshot.nodes})
    for held in snapshot.admitted:
        for position, name in held.survivors.items():
            if position not in held.reserved:
                used[name] -= held.gang.request_of(position).gpus
    return {name for name, gpus in used.items() if gpus > 0}


def _free_domains(pool: Pool, snapshot: Snapshot, *, used: set[str]) -> list[int]:
    """How many known domains of each level, broadest first, nobody uses."""
    nodes = [node for node in snapshot.nodes if node.pool == pool.name]
    counts: list[int] = []
    for depth in range(1, len(pool.levels) + 1):
        paths = {node.domains[:depth] for node in nodes if _is_known(node.domains, depth)}
        busy = {node.domains[:depth] for node in nodes if node.name in used}
        counts.append(len(paths - busy))
    return counts


def _is_known(domains: Sequence[str], depth: int) -> bool:
    return len(domains) >= depth and domains[depth - 1] != ""
