"""What of a job's status the scheduler waits for."""

from __future__ import annotations

from typing import Final

from drumline_api.conditions import Phase
from drumline_api.jobstatus import TrainingJobStatus

_KEEPS_PLACES: Final = {Phase.STARTING, Phase.RUNNING, Phase.RECOVERING}


def scheduled_state(status: TrainingJobStatus) -> tuple[object, ...]:
    """Another value: a place is needed or given back, a member leaves or may move.

    Whether a gang starts, runs or recovers on places that it keeps is nothing to it: a thousand
    jobs that start to run wake nobody.
    """
    leaves = status.disruption is not None
    movable = status.disruption is not None and bool(status.disruption.movable)
    phase = None if status.phase in _KEEPS_PLACES and not movable else status.phase
    return (status.assignment, phase, leaves, movable)
