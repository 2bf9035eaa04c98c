"""Verdict on a job: whether it can be scheduled as written. One for each metadata.generation."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.lifecycle.model.hardware import PoolHardware
from drumline_api.conditions import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShortage:
    """The planner predicts that the job does not fit in its GPUs. It may start anyway."""

    message: str
    """Needed and available memory, and the smallest change with which the job would fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedulable:
    """The job can be scheduled."""

    shortage: MemoryShortage | None = None
    hardware: PoolHardware | None = None
    """Hardware that its memory was judged on. None if the pools do not declare it."""
    sizes: tuple[int, ...] = ()
    """Numbers of pods that it may have if its ranks choose their layout.

    Empty if they depend on the spec alone (`sizes.allowed_sizes`).
    """

    @property
    def by_the_spec(self) -> bool:
        """Return whether the same spec and hardware give the same verdict."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Unjudged:
    """The verdict is not known yet, because a thread is judging the spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The job cannot be scheduled. Its condition InvalidConfig shows that."""

    reason: Reason
    message: str
    """Message that begins with the wrong field."""
    hardware: PoolHardware | None = None
    """Hardware that its memory was judged on."""

    @property
    def by_the_spec(self) -> bool:
        """Return whether the same spec and hardware give the same verdict.

        False if the operator failed at the job, or cannot read it.
        """
        return self.reason in (Reason.CONFIG_REFUSED, Reason.MEMORY_EXCEEDED)


Verdict = Schedulable | Unjudged | Refusal
