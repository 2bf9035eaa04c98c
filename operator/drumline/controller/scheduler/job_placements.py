"""What a cycle gives to each job, as places of its members.

To the scheduler the surplus of a job is a gang of its own; in the status the members of both are
one list, those of the surplus last. So all that is decided about a job is written at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from drumline.api.jobstatus import TrainingJobStatus
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import base_size, members_of
from drumline.lifecycle.model.roles import member_order, member_position
from drumline.lifecycle.plan.node_disruption import evacuated
from drumline.lifecycle.transitions import membership
from drumline.scheduling.decisions import Decisions, Placed, Resized
from drumline.scheduling.model import is_surplus, job_uid


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlacement:
    """The decisions about one job: about its gang, and about its surplus."""

    uid: str
    placed: Placed | None = None
    resized: Resized | None = None
    surplus_placed: Placed | None = None
    surplus_resized: Resized | None = None

    @property
    def start(self) -> Placed | None:
        """Its places, if it had none."""
        return self.placed if self.placed is not None and not self.placed.replaced else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """Members that get new pods."""

    nodes: Sequence[str]
    """Of all members, by position."""
    positions: Sequence[int]
    """Of those that are replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Members that go on, and new ones."""

    kept: Sequence[int]
    added: Sequence[str]
    surplus_pool: str | None = None
    """The pool of the added nodes, where they are surplus."""


def placements(decisions: Decisions) -> Iterable[JobPlacement]:
    """The decisions by job."""
    by_job: dict[str, JobPlacement] = {}
    for placed in decisions.placed:
        given = by_job.get(job_uid(placed.uid)) or JobPlacement(uid=job_uid(placed.uid))
        by_job[given.uid] = (
            replace(given, surplus_placed=placed)
            if is_surplus(placed.uid)
            else replace(given, placed=placed)
        )
    for resized in decisions.resized:
        given = by_job.get(job_uid(resized.uid)) or JobPlacement(uid=job_uid(resized.uid))
        by_job[given.uid] = (
            replace(given, surplus_resized=resized)
            if is_surplus(resized.uid)
            else replace(given, resized=resized)
        )
    return by_job.values()


def replacement(given: JobPlacement, job: Job) -> Replacement | None:
    """The members that are placed again; None: there are none."""
    first = base_size(job.status)
    nodes = [member.node for member in members_of(job.status)]
    positions: list[int] = []
    if given.placed is not None:
        own = member_order(job.spec, given.placed.assignment)
        nodes[:first] = own
        positions += [
            member_position(job.spec, place, members=len(own)) for place in given.placed.replaced
        ]
    if given.surplus_placed is not None and given.surplus_placed.replaced:
        nodes[first:] = given.surplus_placed.assignment
        positions += [first + place for place in given.surplus_placed.replaced]
    return Replacement(nodes=nodes, positions=positions) if positions else None


def resize(given: JobPlacement, job: Job) -> Resize | None:
    """The change of its size; None: there is none.

    Surplus whose gang has no places, as these are not to be had yet, is none either.
    """
    first, resized, surplus = base_size(job.status), given.surplus_resized, given.surplus_placed
    if given.resized is not None:
        return Resize(kept=given.resized.kept, added=given.resized.added)
    if resized is not None:
        kept = [*range(first), *(first + place for place in resized.kept)]
        return Resize(kept=kept, added=resized.added, surplus_pool=resized.pool)
    if surplus is not None and not surplus.replaced and first:
        return Resize(kept=range(first), added=surplus.assignment, surplus_pool=surplus.pool)
    return None


def with_changes(
    job: Job, *, moved: Replacement | None, size: Resize | None, epoch: int, now: float
) -> Job:
    """The job with the status in which both are done; the same object where there is neither."""
    changed = job
    if moved is not None:
        changed = replace(job, status=_replaced(job, moved, epoch=epoch, now=now))
    if size is not None:
        status = membership.resized(
            changed,
            kept=size.kept,
            added=size.added,
            surplus_pool=size.surplus_pool,
            epoch=epoch,
            now=now,
        )
        changed = replace(job, status=status)
    return changed


def _replaced(job: Job, moved: Replacement, *, epoch: int, now: float) -> TrainingJobStatus:
    assignment, announced = job.status.assignment, job.status.disruption
    broken = assignment is not None and bool(assignment.lost)
    if announced is not None and not broken:
        return evacuated(job, nodes=moved.nodes, positions=moved.positions, epoch=epoch, now=now)
    return membership.members_replaced(
        job, nodes=moved.nodes, replaced=moved.positions, epoch=epoch, now=now
    )
