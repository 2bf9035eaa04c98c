"""Whether a job can be scheduled as it is written: judged once for each metadata.generation."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.lifecycle.model.hardware import PoolHardware
from drumline_api.conditions import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShortage:
    """By the planner's bill the job does not fit in its GPUs; it may start all the same."""

    message: str
    """What it needs of what there is, and the smallest change with which it would fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedulable:
    """Nothing speaks against it."""

    shortage: MemoryShortage | None = None
    hardware: PoolHardware | None = None
    """That its memory was judged on; None: nobody says what its GPUs are."""
    sizes: tuple[int, ...] = ()
    """Numbers of pods that it may have where its ranks choose their layout; empty: they follow
    from the spec alone (`sizes.allowed_sizes`)."""

    @property
    def by_the_spec(self) -> bool:
        """Whether the same spec and hardware give the same verdict."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Unjudged:
    """Not known yet: it is being judged beside the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """It cannot be; the job shows this as its condition InvalidConfig."""

    reason: Reason
    message: str
    """Begins with the field at fault."""
    hardware: PoolHardware | None = None
    """That its memory was judged on."""

    @property
    def by_the_spec(self) -> bool:
        """Whether the same spec and hardware give the same verdict.

        Not where the operator failed at the job, or cannot read it.
        """
        return self.reason in (Reason.CONFIG_REFUSED, Reason.MEMORY_EXCEEDED)


Verdict = Schedulable | Unjudged | Refusal
