"""Whether a job is this operator's, whether it is queued, whether its configuration is valid."""

from __future__ import annotations

from drumline.api.conditions import ConditionType
from drumline.lifecycle.manifests.trainer_config import trainer_config
from drumline.lifecycle.model.conditions import is_true
from drumline.lifecycle.model.job import Job
from drumline_trainer.config import ConfigError

MANAGER = "drumline.dev/operator"


def is_ours(job: Job) -> bool:
    """Whether this operator reconciles the job (`managedBy` as in batch/v1 Job)."""
    return job.spec.managed_by in (None, MANAGER)


def is_queued(job: Job) -> bool:
    """Whether the scheduler has to place the job."""
    return (
        is_ours(job)
        and not job.finished
        and not job.deleting
        and not job.spec.suspend
        and job.status.assignment is None
        and not is_true(job.status, ConditionType.SUSPENDED)
        and config_error(job) is None
    )


def config_error(job: Job) -> str | None:
    """Why the trainer's schema rejects the job's configuration; None if it is valid."""
    if not job.runs_trainer:
        return None
    try:
        trainer_config(job.spec)
    except ConfigError as error:
        return str(error)
    return None
