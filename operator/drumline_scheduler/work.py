"""Count the steps of a cycle by gang, and stop a gang that takes too many. Pure: no I/O, no clock.

Searches report the steps that they are about to take (`spend`): sums that are compared, sizes that
are tried. The phases of a cycle name the gang that they decide (`faults.deciding`). A gang with
more than `MOST_GANG_STEPS` raises `OutOfStepsError`, which becomes its answer (`SchedulerError`).

Steps are counted where the work depends on what a tenant writes. A loop that reports none is
stopped from outside: another thread reads `Work.frames` and raises `CycleCutError` in the thread of
the cycle, after it has named the gang (`Work.blame`).
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

from drumline_scheduler.model import Gang

MOST_GANG_STEPS: Final = 1_000_000_000
"""Steps for one gang in one phase: a few seconds. Ordinary gangs take less than a million."""
PROBE_SHARE: Final = 8
"""A probe (`Work.is_probe`) may take this part of the steps."""


class OutOfStepsError(RuntimeError):
    """One gang takes more steps than it may."""


class CycleCutError(RuntimeError):
    """The cycle was stopped because it took too long."""

    def __init__(self, text: str = "takes too long") -> None:
        super().__init__(text)


class Frame(Protocol):
    """A part of the cycle that decides one gang."""

    @property
    def gang(self) -> Gang:
        """The gang."""
        ...

    @property
    def began(self) -> int:
        """Steps of the cycle when the part began."""
        ...


class Work:
    """The gangs that a cycle is deciding, and the number of steps it has taken."""

    __slots__ = ("attempts", "blamed", "frames", "is_probe", "steps")

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        """The parts that are being decided, the innermost last."""
        self.steps = 0
        """Steps so far."""
        self.attempts = 0
        """Number of times the cycle has begun."""
        self.blamed: Frame | None = None
        """The part that an exception is about, if it is not the innermost one."""
        self.is_probe = False
        """True for an attempt that only finds out which gang takes too long. It may take less."""

    def spend(self, steps: int) -> None:
        """Count some steps before they are taken.

        Raises:
            OutOfStepsError: the gang has taken too many.
        """
        self.steps += steps
        most = MOST_GANG_STEPS // PROBE_SHARE if self.is_probe else MOST_GANG_STEPS
        for frame in reversed(self.frames):
            if self.steps - frame.began > most:
                self.blamed = frame
                raise OutOfStepsError(f"takes more than {most} steps")

    def clear(self, *, is_probe: bool = False) -> None:
        """Begin another attempt at the cycle."""
        self.is_probe = is_probe
        self.attempts += 1
        self.frames.clear()
        self.blamed = None


_CURRENT: ContextVar[Work | None] = ContextVar("work", default=None)


def current() -> Work | None:
    """Return the work of the cycle that this thread decides."""
    return _CURRENT.get()


def spend(steps: int) -> None:
    """Count steps of the cycle that this thread decides; see `Work.spend`."""
    work = _CURRENT.get()
    if work is not None:
        work.spend(steps)


@contextmanager
def counted(work: Work) -> Generator[None]:
    """Count the steps inside the context as those of `work`."""
    token = _CURRENT.set(work)
    try:
        yield
    finally:
        _CURRENT.reset(token)
