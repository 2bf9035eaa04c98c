"""Count the steps of a cycle by gang, and stop a gang that takes too many. Pure: no I/O.

Searches report the steps that they are about to take (`spend`): sums that are compared, sizes that
are tried. The phases of a cycle name the gang that they decide (`faults.deciding`). A gang with
more than `MOST_GANG_STEPS` raises `OutOfStepsError`, which becomes its answer (`SchedulerError`).

Steps are counted where the work depends on what a tenant writes. A loop that reports none is
stopped from outside: another thread reads `Work.frames` and raises `CycleCutError` in the thread of
the cycle, after it has named the gang (`Work.blame`).

A cycle may have a time limit (`TimeLimit`). Beyond it, the gangs that are left wait for the next
cycle (`late_gangs`). The caller hands in the clock. The places at which the time was over are part
of the decisions, so a replay ends there too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final, Protocol

from drumline_scheduler.model import Gang

MOST_GANG_STEPS: Final = 1_000_000_000
"""Steps for one gang in one phase: a few seconds. Ordinary gangs take less than a million."""
PROBE_SHARE: Final = 8
"""A probe (`Work.is_probe`) may take this part of the steps."""


LATE_SECONDS: Final = 0.02
"""Processor time after which a cycle tries no more gangs, beside what follows."""
_NODE_SECONDS: Final = 3e-5
"""More of it for each node of the cluster."""
_BEYOND: Final = 0.25
"""Part of the limit after which most gangs that are tried whatever the time wait as well."""
_START_SECONDS: Final = 5e-4
"""More of it for each gang that starts. Starts are what a cycle is for."""


class CyclePart(Enum):
    """A part of a cycle with its share of the time: where it ends, and the least that it has."""

    PROMISES = (0.3, 0.0)
    """Places for gangs with open requests for nodes. Each gets some whatever the time, but a
    request only becomes smaller if there is time."""
    REPAIR = (0.6, 0.25)
    """Repairs of broken gangs. Searches for free slots cost little, and are made whatever the time.
    """
    ADMIT = (1.0, 0.25)
    """Starts of waiting gangs, then growth and moves of running ones."""
    NEEDS = (0.4, 0.0)
    """Waiting gangs on new nodes. Each try is long, so it begins early, or for one gang only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit:
    """The time that a cycle may spend on gangs that do not start."""

    clock: Callable[[], float]
    """Processor seconds of the thread that decides."""
    seconds: float

    @classmethod
    def for_nodes(cls, nodes: int, *, clock: Callable[[], float]) -> TimeLimit:
        """Return the limit for a number of nodes: 35 ms for 500."""
        return cls(clock=clock, seconds=LATE_SECONDS + _NODE_SECONDS * nodes)


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
    """The gangs that a cycle is deciding, and the number of steps it has taken.

    Args:
        limit: limit of its time. None: no limit.
    """

    __slots__ = (
        "_allowed",
        "_asked",
        "_began",
        "_is_late",
        "_is_overdue",
        "_limit",
        "_nearly_over_with",
        "_part",
        "_part_began",
        "attempts",
        "blamed",
        "frames",
        "is_probe",
        "late_at",
        "late_from",
        "steps",
    )

    def __init__(self, *, limit: TimeLimit | None = None) -> None:
        self._limit = limit
        self._began = 0.0
        """Reading of the clock at which this attempt began, plus the time of its starts."""
        self._part: CyclePart | None = None
        self._part_began = 0.0
        """Reading of the clock at which this part began, plus the time of its starts."""
        self._allowed = 0.0
        """Reading of the clock at which this part is over."""
        self._nearly_over_with = inf
        """Least share with which this part has found its time to be nearly over."""
        self._is_late = False
        """True if this part has found its time to be over."""
        self._is_overdue = False
        """True if it was over for privileged gangs, too."""
        self._asked: set[str] = set()
        """Places of this part at which its time was not over."""
        self.late_at: tuple[str, ...] = ()
        """The places at which the time of a part was over."""
        self.late_from: Collection[str] = ()
        """These places in a captured cycle. They end the parts of this one, too."""
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

    def begin(self, part: CyclePart | None) -> None:
        """Begin a part of the cycle with a share of the time. None: no time counts."""
        self._part, self._is_late, self._is_overdue = part, False, False
        self._nearly_over_with = inf
        self._asked.clear()
        if self._limit is not None and part is not None:
            end, least = part.value
            now, seconds = self._limit.clock(), self._limit.seconds
            self._allowed = max(self._began + end * seconds, now + least * seconds)
            self._part_began = now

    def is_late(self, place: str) -> bool:
        """Return whether the rest of this part waits for the next cycle.

        A question that was answered with no is not asked again, so that a replay with another cache
        ends at the same place.

        Args:
            place: the question, such as a stage and the uid of a gang.
        """
        if not self._is_late:
            self._is_late = self._is_after(self._allowed, place=place)
        return self._is_late

    def is_nearly_over(self, place: str, *, kept: float) -> bool:
        """Return whether only a kept share of the time of this part is left.

        Args:
            place: the question, as for `is_late`.
            kept: the share.
        """
        # A larger share is kept from an earlier moment on. Thousands of gangs may ask.
        if self._is_late or kept >= self._nearly_over_with:
            return True
        moment = self._allowed - kept * (self._allowed - self._part_began)
        if not self._is_after(moment, place=f"near {place}"):
            return False
        self._nearly_over_with = kept
        return True

    def is_overdue(self, place: str) -> bool:
        """Return whether even privileged gangs wait for the next cycle.

        Args:
            place: the question, as for `is_late`.
        """
        if self.is_late(place) and not self._is_overdue:
            more = _BEYOND * self._limit.seconds if self._limit else 0.0
            self._is_overdue = self._is_after(self._allowed + more, place=f"beyond {place}")
        return self._is_overdue

    def _is_after(self, moment: float, *, place: str) -> bool:
        """Return whether a moment is over, or was at this place of the captured cycle. Note where.

        Args:
            moment: reading of the clock.
            place: the question.
        """
        if self._part is None:
            return False
        place = f"{self._part.name.lower()}: {place}"
        if place in self._asked:
            return False
        limit = self._limit
        is_after = place in self.late_from if limit is None else limit.clock() >= moment
        if not is_after:
            self._asked.add(place)
        elif self.attempts == 1:
            self.late_at = (*self.late_at, place)
        return is_after

    def note_start(self) -> None:
        """Allow more time, because a gang starts."""
        self._allowed += _START_SECONDS
        self._part_began += _START_SECONDS
        self._began += _START_SECONDS

    def clear(self, *, is_probe: bool = False) -> None:
        """Begin another attempt at the cycle.

        Only the first one has a clock. Later ones end where it ended, so what differs between them
        is not a matter of time.
        """
        if self.attempts:
            self._limit, self.late_from = None, self.late_at
        self.begin(None)
        self._began = self._limit.clock() if self._limit else 0.0
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


def begin(part: CyclePart | None) -> None:
    """Begin a part of the cycle that this thread decides; see `Work.begin`."""
    work = _CURRENT.get()
    if work is not None:
        work.begin(part)


def is_late(place: str) -> bool:
    """Return whether the time of a part is over; see `Work.is_late`."""
    work = _CURRENT.get()
    return work is not None and work.is_late(place)


def is_nearly_over(place: str, *, kept: float) -> bool:
    """Return whether only a share of a part's time is left; see `Work.is_nearly_over`."""
    work = _CURRENT.get()
    return work is not None and work.is_nearly_over(place, kept=kept)


def is_overdue(place: str) -> bool:
    """Return whether even privileged gangs wait; see `Work.is_overdue`."""
    work = _CURRENT.get()
    return work is not None and work.is_overdue(place)


def never_late(_place: str) -> bool:
    """Stands for `is_late` where no time counts."""
    return False


def lateness(try_budget: int | None) -> Callable[[str], bool]:
    """Return `is_late`, or `never_late` for a cycle without a budget for searches."""
    return is_late if try_budget is not None else never_late


def note_start() -> None:
    """Allow the cycle that this thread decides more time, because a gang starts."""
    work = _CURRENT.get()
    if work is not None:
        work.note_start()


@contextmanager
def counted(work: Work) -> Generator[None]:
    """Count the steps inside the context as those of `work`."""
    token = _CURRENT.set(work)
    try:
        yield
    finally:
        _CURRENT.reset(token)
