"""GPU-seconds of a decoded job until now, as in `lifecycle.incidents.gpu_seconds`.

The status is written when the held GPUs or the state change, so it is older than the use until now.
The remaining use follows from its state. A property test compares both implementations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from drumline.overview.objects import JobObject, seconds
from drumline.overview.rows import StayRow

STATES: Final = ("productive", "starting", "repeated", "recovering")


def held_gpu_seconds(job: JobObject, *, now: float) -> Mapping[str, int]:
    """Return whole GPU-seconds by state. All are zero before its first GPU."""
    account, places = job.status.gpu_seconds, job.held_places
    if account is None:
        return dict.fromkeys(STATES, 0)
    held = {state: int(getattr(account, state)) for state in STATES}
    until = seconds(account.until)
    if places is None or until is None:
        return held
    elapsed = max(0, int(now) - int(until))
    joining = job.spec.gpus_of(places.joining or ())
    held["starting"] += joining * elapsed
    held[_state(job)] += (_present_gpus(job) - joining) * elapsed
    return held


def stays_of(job: JobObject, *, now: float) -> tuple[StayRow, ...]:
    """Return the periods in which a job held GPUs, oldest first. Of many, only the latest."""
    account = job.status.gpu_seconds
    stays: list[StayRow] = []
    for stay in (account and account.stays) or ():
        begins, ends = seconds(stay.since), seconds(stay.until)
        if begins is not None and ends is not None and ends > begins:
            stays.append(StayRow(begins_at=begins, ends_at=ends, gpus=stay.gpus))
    counted = seconds(account.until) if account is not None else None
    if counted is not None and job.held_places is not None:
        begins, gpus, end = counted, _present_gpus(job), max(counted, float(int(now)))
        if stays and (stays[-1].ends_at, stays[-1].gpus) == (counted, gpus):
            begins = stays.pop().begins_at
        if end > begins and gpus:
            stays.append(StayRow(begins_at=begins, ends_at=end, gpus=gpus))
    return tuple(stays)


def _present_gpus(job: JobObject) -> int:
    """Return the GPUs that a job holds, without those of lost members."""
    places = job.status.assignment
    return job.gpus - job.spec.gpus_of((places and places.lost) or ())


def _state(job: JobObject) -> str:
    true = {each.type for each in job.status.conditions or () if each.status == "True"}
    if "Running" in true:
        return "productive"
    return "recovering" if "Recovering" in true else "starting"
