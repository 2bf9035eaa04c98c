"""GPU-seconds by state. Every second for which a job held a GPU is in exactly one state.

They are counted in whole seconds at each status write that changes what the job holds or does. So
the sum equals held GPUs times seconds, whatever happened in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from drumline.lifecycle.model.conditions import changed, is_true
from drumline.lifecycle.model.hardware import GpuShare
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.roles import gang_gpus, gpus_of
from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp
from drumline_api.conditions import ConditionType, Reason
from drumline_api.incidents import MAX_STAYS, GpuSeconds, Stay
from drumline_api.jobstatus import TrainingJobStatus
from drumline_api.trainingjob import TrainingJobSpec


def counting_started(
    status: TrainingJobStatus, *, now: float, share: GpuShare | None = None
) -> TrainingJobStatus:
    """Return the status with GPU-seconds counted from now on. Counted ones stay.

    Args:
        status: status of a job that is admitted.
        now: seconds since the epoch.
        share: fraction of a GPU that each of its GPUs is. None means 1. The share of the first
            admission stays for the job's life, because its account has one unit.
    """
    account = status.gpu_seconds or GpuSeconds(
        until=timestamp(now),
        parts=None if share is None else share.parts,
        parts_per_gpu=None if share is None else share.parts_per_gpu,
    )
    return changed(status, gpu_seconds=account.model_copy(update={"until": timestamp(now)}))


def with_elapsed(job: Job, *, now: float) -> TrainingJobStatus:
    """Return the job's status with the time since the last count, if it holds GPUs."""
    account = account_at(job.spec, job.status, now=now)
    return job.status if account is None else changed(job.status, gpu_seconds=account)


def account_at(
    spec: TrainingJobSpec, status: TrainingJobStatus, *, now: float
) -> GpuSeconds | None:
    """Return a job's account until `now`, or its end. None before its first GPU.

    The status of a job with a template is not written while it runs, because such a job reports no
    figures. So the stored account is older than the GPUs that were held.

    Args:
        spec: the job's spec.
        status: the job's present status.
        now: Unix time in seconds.
    """
    account, assignment = status.gpu_seconds, status.assignment
    if account is None or assignment is None or status.finished_at is not None:
        return account
    # Phase 1: whole seconds since the last count. The fraction stays for the next count.
    counted, state = parse_timestamp(account.until), _state(status)
    elapsed = max(0, int(now) - int(counted))
    # Phase 2: GPUs by state. Joining members start while the others train.
    joining, lost = gpus_of(spec, assignment.joining or ()), gpus_of(spec, assignment.lost or ())
    held = gang_gpus(spec, members=len(assignment.nodes)) - lost - joining
    seconds = {name: getattr(account, name) for name in ("starting", state)}
    seconds["starting"] += joining * elapsed
    seconds[state] += held * elapsed
    # Phase 3: the new account.
    until = timestamp(counted + elapsed)
    stays = _with_stay(account, gpus=held + joining, until=until) if elapsed else account.stays
    return account.model_copy(update={**seconds, "until": until, "stays": stays})


def _with_stay(account: GpuSeconds, *, gpus: int, until: str) -> list[Stay] | None:
    """Return the stays with another one, or with the last one extended.

    Example: 8 GPUs since 10:00, counted to 10:05. 8 GPUs until 10:07 make one stay of 7 minutes. 6
    GPUs until 10:07 make a second stay. After a preemption the account continues at the next start
    with a new stay.
    """
    stays = account.stays or []
    last = stays[-1] if stays else None
    # The same number of GPUs without a gap: the stay continues.
    if last is not None and (last.until, last.gpus) == (account.until, gpus):
        return [*stays[:-1], last.model_copy(update={"until": until})]
    if not gpus:
        return account.stays
    return [*stays, Stay(since=account.until, until=until, gpus=gpus)][-MAX_STAYS:]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSecondsRate:
    """GPU-seconds of a job as a function of time, valid while its status stays.

    It has the sums of `account_at` without its texts, for figures over thousands of jobs.

    Attributes:
        counted: time of `productive` and `total`, in whole seconds since the epoch.
        productive: productive GPU-seconds until then.
        total: GPU-seconds in all states.
        productive_gpus: GPUs that are productive since then.
        gpus: GPUs that are held since then.
        share: fraction of a GPU that each of them is.
    """

    counted: int
    productive: int
    total: int
    productive_gpus: int
    gpus: int
    share: Fraction = Fraction(1)

    def at(self, now: float) -> tuple[int, int]:
        """Return productive and all GPU-seconds until `now`."""
        elapsed = max(0, int(now) - self.counted)
        return self.productive + self.productive_gpus * elapsed, self.total + self.gpus * elapsed


def rate_of(spec: TrainingJobSpec, status: TrainingJobStatus) -> GpuSecondsRate | None:
    """Return the rate of a job's GPU-seconds, or None before its first GPU."""
    account = status.gpu_seconds
    if account is None:
        return None
    counted = int(parse_timestamp(account.until))
    # The difference over one second gives the rates, so both functions always agree.
    before, later = (account_at(spec, status, now=now) for now in (counted, counted + 1))
    if before is None or later is None:
        return None
    return GpuSecondsRate(
        counted=counted,
        productive=before.productive,
        total=_total(before),
        productive_gpus=later.productive - before.productive,
        gpus=_total(later) - _total(before),
        share=account.share,
    )


def _total(account: GpuSeconds) -> int:
    return account.starting + account.productive + account.repeated + account.recovering


def reclassified(
    status: TrainingJobStatus, *, recovering: float = 0.0, repeated: float = 0.0
) -> TrainingJobStatus:
    """Return the status with GPU-seconds moved from `productive` to the other states.

    At most the productive GPU-seconds are moved. Example: 100 productive, recovering=30,
    repeated=90 -> 0 productive, 30 recovering, 70 repeated.

    Args:
        status: the job's present status.
        recovering: GPU-seconds of recoveries.
        repeated: GPU-seconds of steps that were trained again.
    """
    account = status.gpu_seconds
    if account is None:
        return status
    # Only productive seconds are moved: every second stays in exactly one state.
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
        return "recovering" if status.reason == Reason.HELD else "productive"
    return "recovering" if is_true(status, ConditionType.RECOVERING) else "starting"
