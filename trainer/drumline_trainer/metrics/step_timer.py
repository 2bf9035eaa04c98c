"""The time of a step by part. At any moment exactly one part runs, so the parts sum to the step.

The phases of the training loop are the base: each lasts until the next begins. Code that waits for
other ranks within a phase is wrapped in `step_part`, whose time is not counted for the phase:

    with step_part("all_reduce", Axis.TENSOR):
        work.wait()

On a GPU the marks between parts are events on the current stream (`cuda_clock`), read once they
have passed, so nothing is synchronized; a collective that overlaps the computation counts only as
far as the computation waits for it. Enter `step_part` on the stream that waits.

A process is one rank, and the observers are global to the process: `step_part` is entered from deep
inside autograd, where no argument can be passed. Without observers it costs next to nothing.

Example: forward runs from 0 s to 5 s, with a `step_part("all_reduce", "tp")` from 1 s to 3 s. The
timer counts 3 s of forward and 2 s of all_reduce/tp.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from torch.compiler import is_dynamo_compiling

OTHER = "other"
"""The time between phases: the loop itself, logging."""
_MAX_MARKS = 512
"""Number of kept marks. Beyond it the oldest are read."""


class Clock(Protocol):
    """Points in time that may be known only later."""

    def mark(self) -> Any:
        """Return the current position in the queue of work."""
        ...

    def seconds(self, earlier: Any, later: Any) -> float | None:
        """Return seconds between two marks, or None until the work reaches the later one."""
        ...


class WallClock:
    """The host's clock."""

    def mark(self) -> float:
        """Return the time of the monotonic clock."""
        return time.monotonic()

    def seconds(self, earlier: float, later: float) -> float:
        """Return the difference."""
        return later - earlier


class Observer(Protocol):
    """Notified of what runs. `begin` and `end` nest within a phase; phases follow each other."""

    def enter(self, phase: str) -> None:
        """Begin a phase, which ends the phase before."""
        ...

    def begin(self, name: str) -> None:
        """Begin a part within the phase."""
        ...

    def end(self) -> None:
        """End the part that was begun last."""
        ...


class StepTimer:
    """Seconds by part since the last `take`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or WallClock()
        self._running: list[str] = [OTHER]
        """The phase, and the parts open within it."""
        self._marks: deque[tuple[Any, str]] = deque()
        """When each part began to run, oldest first; the last one is running."""
        self._seconds: dict[str, float] = {}

    def restart(self) -> None:
        """Discard everything; from now on `OTHER` runs."""
        self._marks.clear()
        self._seconds.clear()
        self._running = [OTHER]
        self._mark()

    def enter(self, phase: str) -> None:
        """Begin a phase, which ends the phase before."""
        # A phase replaces all open parts: an exception can leave parts without their `end`.
        self._running = [phase]
        self._mark()

    def begin(self, name: str) -> None:
        """Begin a part, which lasts until its `end`."""
        self._running.append(name)
        self._mark()

    def end(self) -> None:
        """Continue with what ran before the innermost part."""
        # The phase itself stays, so an unmatched `end` cannot empty the stack.
        if len(self._running) > 1:
            self._running.pop()
        self._mark()

    def take(self) -> dict[str, float]:
        """Return the seconds by part and reset them; on a GPU up to its finished work."""
        self._mark()
        self._read_marks()
        taken, self._seconds = self._seconds, {}
        return taken

    def _mark(self) -> None:
        self._marks.append((self._clock.mark(), self._running[-1]))
        # The bound limits memory when the device falls far behind the host.
        if len(self._marks) >= _MAX_MARKS:
            self._read_marks()

    def _read_marks(self) -> None:
        # The last mark has no end yet and stays.
        while len(self._marks) > 1:
            (began, part_name), (ended, _) = self._marks[0], self._marks[1]
            seconds = self._clock.seconds(began, ended)
            # CUDA events pass in order, so all later marks are unfinished too.
            if seconds is None:
                return
            self._seconds[part_name] = self._seconds.get(part_name, 0.0) + seconds
            self._marks.popleft()


_observers: tuple[Observer, ...] = ()


def observe(*observers: Observer) -> None:
    """Make these the observers of the process, instead of the present ones."""
    global _observers  # noqa: PLW0603 - the process is the rank, see above
    _observers = observers


class step_part:  # noqa: N801 - reads as the statement it is part of
    """`with step_part("all_gather", Axis.FSDP):` around code that waits for other ranks.

    Args:
        operation: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send or recv.
        axis: name of the group; waiting on `pp` counts as the pipeline's bubble. Empty for a
            phase, which a pipeline's schedule enters as a part.
    """

    __slots__ = ("_name", "_notified")

    def __init__(self, operation: str, axis: str = "") -> None:
        self._name = f"{operation}/{axis}" if axis else operation
        self._notified: tuple[Observer, ...] = ()

    def __enter__(self) -> None:
        """Notify the observers, unless this is being compiled."""
        # torch.compile cannot trace the observers. The compiled graph contains no marks.
        if is_dynamo_compiling():
            return
        # Remember the observers: they can change before the exit, and `begin` must match `end`.
        self._notified = _observers
        if self._notified:
            for observer in self._notified:
                observer.begin(self._name)

    def __exit__(self, *_: object) -> None:
        """Notify the same observers of the end."""
        for observer in reversed(self._notified):
            observer.end()


def per_step(seconds: Mapping[str, float], *, steps: int) -> dict[str, float]:
    """Return mean seconds of a step by part, largest first."""
    # The name breaks ties, so equal times have the same order on all ranks.
    ordered = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    return {name: value / steps for name, value in ordered}
