"""What a pod starts: its command, how often, and what is known about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drumline_trainer.contract import LaunchSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """The command of a pod and its template's settings."""

    command: Sequence[str]
    launch: LaunchSettings
    gpus: int
    """GPUs of the pod."""
