"""The part of a job's status whose changes wake the scheduler."""

from __future__ import annotations

from typing import Final

from drumline_api.conditions import Phase
from drumline_api.jobstatus import TrainingJobStatus

_KEEPS_PLACES: Final = {Phase.STARTING, Phase.RUNNING, Phase.RECOVERING}


def scheduled_state(status: TrainingJobStatus) -> tuple[object, ...]:
    """Return the value whose change wakes the scheduler.

    It changes when a place is needed or released, or when a member leaves or may move. It stays the
    same when a gang starts, runs or recovers on the places that it holds. A thousand starting jobs
    therefore do not wake the scheduler.
    """
    leaves = status.disruption is not None
    movable = status.disruption is not None and bool(status.disruption.movable)
    phase = None if status.phase in _KEEPS_PLACES and not movable else status.phase
    return (status.assignment, phase, leaves, movable)
