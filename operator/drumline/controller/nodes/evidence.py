"""What jobs say against nodes: members that compute slowly, and GPUs that failed.

All of it is a tenant's word, so it is bounded: a job speaks of nodes that it holds, in figures that
are rounded, and of slow members while at most a quarter of its members (of fewer than eight: one)
are slow. What follows from it is decided in `scheduler.disruption.node_scores`.
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
"""In a smaller gang nobody knows which member is the slow one."""
_PERCENT_STEP: Final = 10
_MOST_PERCENT: Final = 1000


def evidence_of(
    jobs: Iterable[Job], status_of: Callable[[str], AgentStatus | None], *, now: float
) -> list[Evidence]:
    """What all jobs say against nodes.

    Args:
        jobs: all there are.
        status_of: what the agents of a job said last, by its uid.
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
    if status is None or assignment is None or status.generation != job.status.generation:
        return
    indices, nodes = assignment.indices(), assignment.node_names()
    if len(indices) != len(nodes):  # not a status of ours: which member is where is not known
        return
    node_of = dict(zip(indices, nodes, strict=True))
    slow = [member for member in status.slow if member.index in node_of]
    if len(node_of) < FEWEST_MEMBERS or len(slow) > most_slow(len(node_of)):
        return
    for member in slow:
        percent = min(member.percent, _MOST_PERCENT) // _PERCENT_STEP * _PERCENT_STEP
        yield Evidence(
            node=node_of[member.index],
            kind=EvidenceKind.SLOW,
            at=now,
            by=job.namespace,
            detail=f"by {percent} %",
        )
