"""Fields of every written status: the spec that it is about, and whether the job is ready.

Failed starts are counted for one spec: the first status of a newer spec has none.

The conditions are derived from the phase in one place, so that no transition can forget them.
kstatus (Flux, Argo CD, `kpt live`) and `kubectl wait` read them:

    phase                               Ready  Stalled  kstatus
    Running, Succeeded, Suspended       True   -        Current
    Pending, Starting, Recovering       False  -        InProgress
    Failed; Pending with InvalidConfig  False  True     Failed

A job is ready once it runs, and while it is suspended on request. Jobs of batch/v1 do the same.
"""

from __future__ import annotations

from drumline.lifecycle.model.conditions import changed, is_true, with_condition
from drumline.lifecycle.model.job import Job
from drumline_api.conditions import ConditionType, Phase
from drumline_api.jobstatus import TrainingJobStatus

_AS_ASKED = frozenset({Phase.RUNNING, Phase.SUCCEEDED, Phase.SUSPENDED})


def as_written(job: Job, status: TrainingJobStatus, *, now: float) -> TrainingJobStatus:
    """Return the status with `observedGeneration` and the conditions Ready and Stalled.

    Args:
        job: the version of the job that the status was decided from.
        status: the decided status.
        now: seconds since the epoch.
    """
    if is_unobserved(job) and status.assignment is None and status.phase != Phase.FAILED:
        status = changed(status, failed_starts=None)  # these were starts of another spec
    status = changed(status, observed_generation=job.object_generation)
    if status.phase is None:
        return status
    reason = status.reason or str(status.phase)
    truth = "True" if status.phase in _AS_ASKED else "False"
    status = with_condition(status, job, ConditionType.READY, truth, reason, "", now)
    if status.phase == Phase.FAILED or is_true(status, ConditionType.INVALID_CONFIG):
        message = status.message or ""
        return with_condition(status, job, ConditionType.STALLED, "True", reason, message, now)
    # An absent Stalled means that nothing stalls, as kstatus expects it.
    kept = [entry for entry in status.conditions or () if entry.type != ConditionType.STALLED]
    return changed(status, conditions=kept)


def is_unobserved(job: Job) -> bool:
    """Return whether the status is about an older spec. A job without a status is not."""
    observed = job.status.observed_generation
    return observed is not None and observed != job.object_generation
