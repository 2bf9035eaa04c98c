"""Describe the outcome of a cycle for each job, to compare scheduler versions. Pure.

Messages, blockers, remedies and the order of considerations are no outcome: a new version may word
a reason better, and nobody's job starts later for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from drumline_cli.formatting import many
from drumline_contract import plain
from drumline_scheduler.decisions import Decisions

_NODES: Final = 4
_NOTHING: Final = "nothing is decided"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedJob:
    """A job that fares otherwise.

    Attributes:
        job: `namespace/name`.
        before: what was decided.
        now: what is decided.
    """

    job: str
    before: str
    now: str


def changed_jobs(before: Decisions, after: Decisions) -> tuple[ChangedJob, ...]:
    """Return the jobs whose outcome differs, by name."""
    was, now = _outcomes(before), _outcomes(after)
    return tuple(
        ChangedJob(job=plain(job), before=was.get(job, _NOTHING), now=now.get(job, _NOTHING))
        for job in sorted({*was, *now})
        if was.get(job) != now.get(job)
    )


def _outcomes(decisions: Decisions) -> dict[str, str]:
    said: defaultdict[str, list[str]] = defaultdict(list)
    for job, outcome in _all(decisions):
        said[job].append(outcome)
    return {job: plain("; ".join(outcomes)) for job, outcomes in said.items()}


def _all(decisions: Decisions) -> Iterator[tuple[str, str]]:
    for placed in decisions.placed:
        yield placed.key, f"starts on {_nodes(placed.assignment)} of {placed.pool}"
    for resized in decisions.resized:
        yield (
            resized.key,
            f"keeps {many(len(resized.kept), 'pod')}, adds {_nodes(resized.added)}",
        )
    for preemption in decisions.preemptions:
        yield preemption.key, f"preempts for {_nodes(preemption.assignment)} of {preemption.pool}"
        for victim in preemption.victims:
            moves = f", moves to {_nodes(victim.moves_to)}" if victim.moves_to else ""
            yield victim.key, f"is preempted for {preemption.key} ({victim.why}){moves}"
    for move in decisions.moves:
        yield move.key, f"moves to {_nodes(move.assignment)} of {move.pool} ({move.why})"
    for eviction in decisions.evictions:
        yield eviction.key, f"leaves ({eviction.why})"
    for reservation in decisions.reservations:
        yield (
            reservation.key,
            f"has a reservation for {_nodes(reservation.assignment)} of {reservation.pool}",
        )
    for wish in decisions.needs_nodes:
        yield wish.key, f"requests {many(wish.nodes, 'node')} of {wish.pool}"
    for blocked in decisions.blocked:
        yield blocked.key, f"waits ({blocked.reason})"


def _nodes(names: tuple[str, ...]) -> str:
    if not names:
        return "no node"
    if len(names) <= _NODES:
        return ", ".join(names)
    return f"{', '.join(names[:_NODES])} and {many(len(names) - _NODES, 'node')} more"
