"""Convert a cycle's placements of a job to places of its members in its status.

The members of its gang and of its surplus are one list there, with the surplus last. So all
decisions about a job are one write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import base_size, members_of
from drumline.lifecycle.model.roles import member_order, member_position
from drumline.lifecycle.plan.node_disruption import evacuated
from drumline.lifecycle.transitions import membership
from drumline_api.jobstatus import TrainingJobStatus
from drumline_scheduler.decisions_by_job import JobPlacement, Resize


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """Members that get new pods."""

    nodes: Sequence[str]
    """Nodes of all members, by position."""
    positions: Sequence[int]
    """Positions of the replaced members."""


def replacement(given: JobPlacement, job: Job) -> Replacement | None:
    """Return the members that are placed again, or None."""
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


def with_changes(
    job: Job, *, moved: Replacement | None, size: Resize | None, epoch: int, now: float
) -> Job:
    """Return the job with both changes in its status. The same object without any change.

    Args:
        job: the job with its present status.
        moved: new nodes of lost or moved members.
        size: members that join or leave.
        epoch: epoch of this leader.
        now: Unix time in seconds.
    """
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
