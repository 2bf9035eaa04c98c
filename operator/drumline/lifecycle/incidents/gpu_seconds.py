"""GPU-seconds by state: every second that a job held a GPU is in exactly one of them.

Counted in whole seconds at each status write that changes what the job holds or does, so the sum
equals GPUs held times time held, whatever happened in between.
"""

from __future__ import annotations

from drumline.api.conditions import ConditionType
from drumline.api.incidents import GpuSeconds
from drumline.api.jobstatus import TrainingJobStatus
from drumline.lifecycle.model.conditions import changed, is_true
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp


def counting_started(status: TrainingJobStatus, *, now: float) -> TrainingJobStatus:
    """The status with GPU-seconds counted from now on; what was counted before stays."""
    account = status.gpu_seconds or GpuSeconds(until=timestamp(now))
    return changed(status, gpu_seconds=account.model_copy(update={"until": timestamp(now)}))


def with_elapsed(job: Job, *, now: float) -> TrainingJobStatus:
    """The job's status with the time since the last count added, if it holds GPUs."""
    status, account = job.status, job.status.gpu_seconds
    if status.assignment is None or account is None:
        return status
    elapsed = max(0, int(now) - int(parse_timestamp(account.until)))
    lost = len(status.assignment.lost or ())
    joining = len(status.assignment.joining or ())
    held = (job.size - lost - joining) * job.spec.gpus_per_node
    seconds = {state: getattr(account, state) for state in ("starting", _state(status))}
    seconds["starting"] += joining * job.spec.gpus_per_node * elapsed
    seconds[_state(status)] += held * elapsed
    until = timestamp(parse_timestamp(account.until) + elapsed)
    return changed(status, gpu_seconds=account.model_copy(update={**seconds, "until": until}))


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
