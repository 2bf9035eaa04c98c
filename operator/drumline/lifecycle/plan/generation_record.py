"""The generation record: the members of a generation and their addresses, sent to all agents."""

from __future__ import annotations

from drumline.lifecycle.incidents import budgets
from drumline.lifecycle.model.gang import ObservedGang
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.plan.deadlines import generation_at
from drumline_trainer.contract import GenerationRecord, Member, host_name


def generation_record(job: Job, gang: ObservedGang) -> GenerationRecord:
    """The record of the job's current generation; deterministic, so it can be pushed again.

    Args:
        job: has an assignment.
        gang: complete, each pod with an address.
    """
    checkpoint = job.status.checkpoint
    recovery = job.spec.recovery
    return GenerationRecord(
        job_uid=job.uid,
        generation=job.status.generation or 0,
        epoch=job.status.epoch or 0,
        members=tuple(
            Member(
                index=pod.index,
                pod_uid=pod.uid,
                address=pod.ip,
                host=host_name(job.name, pod.index),
                ranks=job.ranks_per_pod,
                node=pod.node,
            )
            for pod in gang.present
        ),
        image=job.status.image or "",
        restore_step=checkpoint.step if checkpoint else None,
        restore_digest=checkpoint.digest if checkpoint else "",
        restarts_left=budgets.remaining(job.status, recovery, at=generation_at(job)),
        hang_timeout_seconds=float(recovery.hang_timeout_seconds),
        previous_ranks=job.status.previous_ranks,
    )
