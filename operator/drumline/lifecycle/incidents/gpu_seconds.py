"""GPU-seconds by state: every second that a job held a GPU is in exactly one of them.

Counted in whole seconds at each status write that changes what the job holds or does, so the sum
equals GPUs held times time held, whatever happened in between.
"""

from __future__ import annotations

from drumline.api.conditions import ConditionType
from drumline.api.incidents import GpuSeconds
from drumline.api.jobstatus import TrainingJobStatus
from drumline.api.trainingjob import TrainingJobSpec
from drumline.lifecycle.model.conditions import changed, is_true
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp


def counting_started(status: TrainingJobStatus, *, now: float) -> TrainingJobStatus:
    """The status with GPU-seconds counted from now on; what was counted before stays."""
    account = status.gpu_seconds or GpuSeconds(until=timestamp(now))
    return changed(status, gpu_seconds=account.model_copy(update={"until": timestamp(now)}))


def with_elapsed(job: Job, *, now: float) -> TrainingJobStatus:
    """The job's status with the time since the last count added, if it holds GPUs."""
    account = account_at(job.spec, job.status, now=now)
    return job.status if account is None else changed(job.status, gpu_seconds=account)


def account_at(
    spec: TrainingJobSpec, status: TrainingJobStatus, *, now: float
) -> GpuSeconds | None:
    """What a job has had until `now`; None before its first GPU.

    The status of a job with a template is not written while it runs, because such a job reports no
    figures: what it shows is older than what was held.
    """
    account, assignment = status.gpu_seconds, status.assignment
    if account is None or assignment is None:
        return account
    elapsed = max(0, int(now) - int(parse_timestamp(account.until)))
    lost, joining = len(assignment.lost or ()), len(assignment.joining or ())
    held = (len(assignment.nodes) - lost - joining) * spec.gpus_per_node
    seconds = {state: getattr(account, state) for state in ("starting", _state(status))}
    seconds["starting"] += joining * spec.gpus_per_node * elapsed
    seconds[_state(status)] += held * elapsed
    until = timestamp(parse_timestamp(account.until) + elapsed)
    return account.model_copy(update={**seconds, "until": until})


def reclassified(
    status: TrainingJobStatus, *, recovering: float = 0.0, repeated: float = 0.0
) -> TrainingJobStatus:
    """The status with GPU-seconds moved from `productive` to `recovering` and `repeated`.

    Example: 100 productive, recovering=30, repeated=90 -> 0 productive, 30 recovering, 70 repeated;
    never more is moved than was counted as productive.
    """
    account = status.gpu_seconds
    if account is None:
        return status
    recovered = min(round(recovering), account.productive)
    again = min(round(repeated), account.productive - recovered)
    return changed(
        status,
        gpu_seconds=account.model_copy(
            update={
                "productive": account.productive - recovered - again,
                "recovering": account.recovering + recovered,
                "repeated": account.repeated + again,
            }
        ),
    )


def _state(status: TrainingJobStatus) -> str:
    if is_true(status, ConditionType.RUNNING):
        return "productive"
    return "recovering" if is_true(status, ConditionType.RECOVERING) else "starting"
