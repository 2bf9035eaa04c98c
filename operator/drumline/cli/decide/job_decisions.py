"""What a cycle decided, a line for each job that it concerns: the same for people and programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from drumline.cli.formatting import many
from drumline.scheduling.decisions import (
    Blocked,
    Decisions,
    Move,
    Placed,
    Preemption,
    Resized,
    Victim,
)
from drumline.scheduling.forecast import ExpectedStart
from drumline.scheduling.model import Admitted, Gang, Snapshot


class Verdict(StrEnum):
    """What happens to a job in this cycle."""

    PLACED = "Placed"
    REPAIRED = "Repaired"
    RESIZED = "Resized"
    PREEMPTED = "Preempted"
    """It is asked to save and to give its places to another job."""
    MOVED = "Moved"
    """It is asked to save, and starts again in other places."""
    WAITS = "Waits"


class Line(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One job, and what happens to it.

    Attributes:
        job: `namespace/name`.
        uid: Its uid.
        queue: Its queue.
        pods: How many pods it has then, or asks for.
        gpus: How many GPUs these have.
        verdict: What happens.
        pool: Where it is placed, or to be placed once others have left.
        nodes: By position.
        level: The narrowest level of which one domain holds it all.
        domain: That domain's path.
        reason: Why it waits or has to go, from a closed list.
        message: The reason with figures and names.
        blockers: Jobs whose leaving would make room.
        by: The job for which it has to go.
        gpu_seconds_lost: Work it loses by going.
        remedy: The smallest change that would let it start, as a sentence.
        remedy_kind: The same, from a closed list.
        reserved_at: When its reservation begins (seconds since the epoch).
        expected_start: It starts as likely before this moment as after it.
        expected_start_by: Nine in ten forecasts are before this moment.
    """

    job: str
    uid: str
    queue: str
    pods: int
    gpus: int
    verdict: Verdict
    pool: str = ""
    nodes: tuple[str, ...] = ()
    level: str = ""
    domain: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    blockers: tuple[str, ...] = ()
    by: str = ""
    gpu_seconds_lost: float = 0.0
    remedy: str = ""
    remedy_kind: str = ""
    reserved_at: float | None = None
    expected_start: float | None = None
    expected_start_by: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The gangs of the cycle by uid, and the places of those that have some."""

    gangs: Mapping[str, Gang]
    admitted: Mapping[str, Admitted]


def lines(
    decisions: Decisions,
    *,
    snapshot: Snapshot,
    pending: Iterable[Gang],
    starts: Iterable[ExpectedStart] = (),
) -> list[Line]:
    """A line for each job, in the order in which people look: what starts, who goes, who waits.

    Args:
        decisions: what was decided.
        snapshot: of what.
        pending: about whom.
        starts: when they will probably start.
    """
    admitted = {held.gang.uid: held for held in snapshot.admitted}
    gangs = {uid: held.gang for uid, held in admitted.items()}
    known = _Known(gangs=gangs | {gang.uid: gang for gang in pending}, admitted=admitted)
    reserved = {one.uid: one.start_at for one in decisions.reservations}
    coming = {one.uid: one for one in decisions.preemptions}
    expected = {one.uid: one for one in starts}
    return [
        *(_placed(one, known) for one in decisions.placed),
        *(_resized(one, known) for one in decisions.resized),
        *(line for one in decisions.preemptions for line in _victims(one, known)),
        *(_moved(one, known) for one in decisions.moves),
        *(
            _foreseen(
                _waits(one, known, coming=coming.get(one.uid), reserved_at=reserved.get(one.uid)),
                expected.get(one.uid),
            )
            for one in decisions.blocked
        ),
    ]


def _foreseen(line: Line, start: ExpectedStart | None) -> Line:
    if start is None:
        return line
    return replace(line, expected_start=start.p50_at, expected_start_by=start.p90_at)


def _placed(one: Placed, known: _Known) -> Line:
    gang = known.gangs[one.uid]
    return Line(
        job=one.key,
        uid=one.uid,
        queue=gang.queue,
        pods=len(one.assignment),
        gpus=gang.gpus_at(len(one.assignment) - gang.extras),
        verdict=Verdict.REPAIRED if one.replaced else Verdict.PLACED,
        pool=one.pool,
        nodes=one.assignment,
        level=one.level or "",
        domain=one.domain,
        message=one.message,
    )


def _resized(one: Resized, known: _Known) -> Line:
    gang, held = known.gangs[one.uid], known.admitted[one.uid]
    nodes = (*(held.assignment[position] for position in one.kept), *one.added)
    return Line(
        job=one.key,
        uid=one.uid,
        queue=gang.queue,
        pods=len(nodes),
        gpus=gang.gpus_at(len(nodes) - gang.extras),
        verdict=Verdict.RESIZED,
        pool=one.pool,
        nodes=nodes,
        level=one.level or "",
        domain=one.domain,
        message=one.message or f"from {len(held.assignment)} to {len(nodes)} pods",
    )


def _victims(one: Preemption, known: _Known) -> Iterator[Line]:
    for victim in one.victims:
        yield _victim(victim, by=one.key, known=known)


def _victim(victim: Victim, *, by: str, known: _Known) -> Line:
    gang = known.gangs[victim.uid]
    moves = bool(victim.moves_to)
    pods = len(victim.moves_to or victim.kept or known.admitted[victim.uid].assignment)
    return Line(
        job=victim.key,
        uid=victim.uid,
        queue=gang.queue,
        pods=pods,
        gpus=victim.gpus,
        verdict=Verdict.MOVED if moves else Verdict.PREEMPTED,
        pool=victim.moves_to_pool or known.admitted[victim.uid].pool,
        nodes=victim.moves_to,
        reason=str(victim.why),
        message=f"goes on with {many(pods, 'pod')}" if victim.kept else "",
        by=by,
        gpu_seconds_lost=victim.gpu_seconds_lost,
    )


def _moved(one: Move, known: _Known) -> Line:
    gang = known.gangs[one.uid]
    freed = f"{many(one.domains_freed, 'domain')} more free then" if one.domains_freed else ""
    return Line(
        job=one.key,
        uid=one.uid,
        queue=gang.queue,
        pods=len(one.assignment),
        gpus=gang.gpus_at(len(one.assignment) - gang.extras),
        verdict=Verdict.MOVED,
        pool=one.pool,
        nodes=one.assignment,
        reason=str(one.why),
        message=freed,
        gpu_seconds_lost=one.gpu_seconds_lost,
    )


def _waits(
    one: Blocked, known: _Known, *, coming: Preemption | None, reserved_at: float | None
) -> Line:
    gang = known.gangs[one.uid]
    return Line(
        job=one.key,
        uid=one.uid,
        queue=gang.queue,
        pods=gang.extras + gang.nodes,
        gpus=gang.gpus,
        verdict=Verdict.WAITS,
        pool=coming.pool if coming else "",
        nodes=coming.assignment if coming else (),
        reason=str(one.reason),
        message=one.message,
        blockers=one.blockers,
        remedy=str(one.remedy) if one.remedy else "",
        remedy_kind=str(one.remedy.kind) if one.remedy else "",
        reserved_at=reserved_at,
    )
