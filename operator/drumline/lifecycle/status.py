"""Transitions of a job's status: each is one named function from a status to the next.

`phase`, `reason` and `message` repeat the condition that matters most, for `kubectl get`. Callers
import this module as `to`, so that a decision reads `status=to.released(job, ...)`.
"""

from __future__ import annotations

from drumline.api.jobstatus import TrainingJobStatus
from drumline.lifecycle.conditions import condition, is_true, summarize
from drumline.lifecycle.memberships import (
    admitted,
    lost,
    not_joined,
    replaced,
    resized,
    restarting,
)
from drumline.lifecycle.phases import (
    expecting,
    failed,
    invalid_config,
    released,
    resumed,
    running,
    succeeded,
    suspended,
    valid_config,
    waiting,
    with_checkpoint,
    with_epoch,
    with_progress,
)
from drumline.lifecycle.yielding import (
    disrupted,
    moving,
    nominated,
    not_nominated,
    preempted,
    withdrawn,
)

__all__ = [
    "TrainingJobStatus",
    "admitted",
    "condition",
    "disrupted",
    "expecting",
    "failed",
    "invalid_config",
    "is_true",
    "lost",
    "moving",
    "nominated",
    "not_joined",
    "not_nominated",
    "preempted",
    "released",
    "replaced",
    "resized",
    "restarting",
    "resumed",
    "running",
    "succeeded",
    "summarize",
    "suspended",
    "valid_config",
    "waiting",
    "with_checkpoint",
    "with_epoch",
    "with_progress",
    "withdrawn",
]
