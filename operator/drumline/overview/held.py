"""GPU-seconds of a job until now, by state: `lifecycle.incidents.gpu_seconds`, of a decoded object.

The status is written when what a job holds or does changes, so what it shows is older than what was
held; the rest follows from its state. A property test holds both to the same figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from drumline.overview.objects import JobObject, seconds

STATES: Final = ("productive", "starting", "repeated", "recovering")


def held_gpu_seconds(job: JobObject, *, now: float) -> Mapping[str, int]:
    """By state, in whole GPU-seconds; all zero before its first GPU."""
    account, places = job.status.gpu_seconds, job.status.assignment
    if account is None:
        return dict.fromkeys(STATES, 0)
    held = {state: int(getattr(account, state)) for state in STATES}
    until = seconds(account.until)
    if places is None or until is None:
        return held
    elapsed = max(0, int(now) - int(until))
    joining = job.spec.gpus_of(places.joining or ())
    settled = job.gpus - job.spec.gpus_of(places.lost or ()) - joining
    held["starting"] += joining * elapsed
    held[_state(job)] += settled * elapsed
    return held


def _state(job: JobObject) -> str:
    true = {each.type for each in job.status.conditions or () if each.status == "True"}
    if "Running" in true:
        return "productive"
    return "recovering" if "Recovering" in true else "starting"
