"""Transitions of a job's status: each is one function from a status to the next.

A transition decides nothing: the caller in `lifecycle.plan` or the scheduler's commit did. `phase`,
`reason` and `message` repeat the condition that matters most, for `kubectl get`. Callers import the
package: `status=transitions.released(job, ...)`.
"""

from __future__ import annotations

from drumline.lifecycle.transitions.disruption import (
    disrupted,
    moving,
    nominated,
    not_nominated,
    preempted,
    withdrawn,
)
from drumline.lifecycle.transitions.membership import (
    admitted,
    lost,
    not_joined,
    replaced,
    resized,
    restarting,
)
from drumline.lifecycle.transitions.phases import (
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

__all__ = [
    "admitted",
    "disrupted",
    "expecting",
    "failed",
    "invalid_config",
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
    "suspended",
    "valid_config",
    "waiting",
    "with_checkpoint",
    "with_epoch",
    "with_progress",
    "withdrawn",
]
