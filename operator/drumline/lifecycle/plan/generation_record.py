"""The generation record: the members of a generation and their addresses, sent to all agents."""

from __future__ import annotations

from drumline.lifecycle.incidents import restart_budgets as budgets
from drumline.lifecycle.model.gang import ObservedGang
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.model.roles import role_pod
from drumline.lifecycle.plan.deadlines import generation_at
from drumline_contract import GenerationRecord, Member, host_name


def generation_record(job: Job, gang: ObservedGang) -> GenerationRecord:
    """Return the record of the job's current generation. It can be pushed again.

    The record is deterministic, so a repeated push has no effect.

    Args:
        job: the job. It has an assignment.
        gang: the complete gang. Each pod has an address.
    """
    checkpoint = job.status.checkpoint
    recovery = job.spec.recovery
    return GenerationRecord(
        job_uid=job.uid,
        generation=job.status.generation or 0,
        epoch=job.status.epoch or 0,
        members=tuple(_member(job, pod) for pod in gang.present if _has_agent(job, pod)),
        image=job.status.image or "",
        restore_step=checkpoint.step if checkpoint else None,
        restore_digest=checkpoint.digest if checkpoint else "",
        restarts_left=budgets.remaining(job.status, recovery, at=generation_at(job)),
        hang_timeout_seconds=float(recovery.hang_timeout_seconds),
        hold_seconds=_hold_seconds(job),
        previous_ranks=job.status.previous_ranks,
        companions=tuple(
            _member(job, pod)
            for pod in gang.present
            if pod.ip and pod.end is None and not _has_agent(job, pod)
        ),
    )


def _hold_seconds(job: Job) -> float | None:
    seconds = job.spec.recovery.hold_seconds
    return float(seconds) if seconds is not None and job.launch is not None else None


def _has_agent(job: Job, pod: PodFacts) -> bool:
    """Return whether the pod waits for the record. Pods of supervised roles do not."""
    return not job.is_supervised or role_pod(job.spec, pod.index) is None


def _member(job: Job, pod: PodFacts) -> Member:
    role = role_pod(job.spec, pod.index)
    return Member(
        index=pod.index,
        pod_uid=pod.uid,
        address=pod.ip,
        host=host_name(job.name, pod.index),
        ranks=job.ranks_per_pod if role is None else 0,
        node=pod.node,
        alias="" if role is None else role.host,
    )
