"""A gang whose program has failed for good, and whose agents keep the pods for their user.

The agents hold it (`recovery.holdSeconds`) and say so; then they end, and the failure is handled as
any other. Until then the gang does not grow and is not asked to save (`Situation.is_held`): nothing
of it trains. What ends its pods ends the hold: suspension, deletion, a deadline, a preemption, a
node that goes.
"""

from __future__ import annotations

from drumline.api.conditions import Reason
from drumline.api.jobstatus import TrainingJobStatus
from drumline.lifecycle.incidents.gpu_seconds import with_elapsed
from drumline.lifecycle.model.conditions import changed
from drumline.lifecycle.model.job import Job


def counted(job: Job, status: TrainingJobStatus, *, now: float) -> TrainingJobStatus:
    """The next status with GPU-seconds counted until now, where a hold begins or ends in it.

    While it lasts they are `recovering`.

    Args:
        job: with the status before.
        status: the next one.
        now: seconds since the epoch.
    """
    if (job.status.reason == Reason.HELD) == (status.reason == Reason.HELD):
        return status
    return changed(status, gpu_seconds=with_elapsed(job, now=now).gpu_seconds)
