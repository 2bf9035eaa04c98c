"""Evidence against nodes from jobs: members that compute slowly, and failed GPUs.

All of it is tenant input, so it is bounded. A job gives evidence only about nodes that it holds, in
rounded figures. It names slow members only while at most a quarter of its members are slow (one, in
a gang of fewer than eight). `scheduler.disruption.node_scores` decides the consequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from drumline.lifecycle.incidents.avoided_nodes import AVOID_SECONDS
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_contract import AgentStatus, most_slow
from drumline_scheduler.disruption.node_scores import Evidence, EvidenceKind

FEWEST_MEMBERS: Final = 3
"""Smallest gang whose slow member can be identified."""
_PERCENT_STEP: Final = 10
_MOST_PERCENT: Final = 1000


def evidence_of(
    jobs: Iterable[Job], status_of: Callable[[str], AgentStatus | None], *, now: float
) -> list[Evidence]:
    """Return the evidence of all jobs against nodes.

    Args:
        jobs: all jobs.
        status_of: returns the last status of a job's agents, by its uid.
        now: seconds since the epoch.
    """
    return [
        each
        for job in jobs
        if job.status.avoided_nodes or job.status.assignment is not None
        for each in (*_failed_devices(job), *_slow_members(job, status_of(job.uid), now=now))
    ]


def _failed_devices(job: Job) -> Iterable[Evidence]:
    for avoided in job.status.avoided_nodes or ():
        yield Evidence(
            node=avoided.node,
            kind=EvidenceKind.DEVICE_FAILED,
            at=parse_timestamp(avoided.until) - AVOID_SECONDS,
            by=job.namespace,
        )


def _slow_members(job: Job, status: AgentStatus | None, *, now: float) -> Iterable[Evidence]:
    assignment = job.status.assignment
    # A report of another generation speaks of other places.
    if status is None or assignment is None or status.generation != job.status.generation:
        return
    indices, nodes = assignment.indices(), assignment.node_names()
    if len(indices) != len(nodes):  # not a status of ours: which member is where is not known
        return
    node_of = dict(zip(indices, nodes, strict=True))
    # Phase 2: ignore a job in which too many members are slow. Then the job is slow, not a node.
    slow = [member for member in status.slow if member.index in node_of]
    if len(node_of) < FEWEST_MEMBERS or len(slow) > most_slow(len(node_of)):
        return
    for member in slow:
        # Rounded and capped, so that a status that hardly changes is not written again.
        percent = min(member.percent, _MOST_PERCENT) // _PERCENT_STEP * _PERCENT_STEP
        yield Evidence(
            node=node_of[member.index],
            kind=EvidenceKind.SLOW,
            at=now,
            by=job.namespace,
            detail=f"by {percent} %",
        )
