"""Where the time of a step goes. At any moment exactly one part runs, so parts sum to the step.

The loop's phases are the ground: each lasts until the next begins. Code inside them that waits for
other ranks says so with `part`, which takes its time out of the phase around it:

    with step_part("all_reduce", Axis.TENSOR):
        work.wait()

On a GPU the marks between parts are events on the current stream (`cuda_clock`), read once they
have passed, so nothing is synchronized; a collective that runs beside the computation costs what
the computation waits for it, and no more. `part` is to be entered on the stream that waits.

A process is one rank and its observers are the process's: `part` is called from deep inside
autograd, where nothing can be handed through. Where nobody observes it costs next to nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

from torch.compiler import is_dynamo_compiling

OTHER = "other"
"""Whatever lies between the phases: the loop itself, logging."""
_SETTLE_AT = 512
"""Marks that are kept before the oldest are read."""


class Clock(Protocol):
    """Points in time that may be known only later."""

    def mark(self) -> Any:
        """Now, in the order of the work."""
        ...

    def seconds(self, earlier: Any, later: Any) -> float | None:
        """Between two marks; None while the work has not got there."""
        ...


class WallClock:
    """Of the host."""

    def mark(self) -> float:
        """The monotonic clock."""
        return time.monotonic()

    def seconds(self, earlier: float, later: float) -> float:
        """The difference."""
        return later - earlier


class Observer(Protocol):
    """Is told what runs. `begin` and `end` nest within a phase; phases follow each other."""

    def enter(self, phase: str) -> None:
        """This phase runs from now on."""
        ...

    def begin(self, name: str) -> None:
        """A part within the phase begins."""
        ...

    def end(self) -> None:
        """The part begun last is over."""
        ...


class StepTimer:
    """Seconds by part since they were last taken."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or WallClock()
        self._running: list[str] = [OTHER]
        """The phase, and the parts open within it."""
        self._marks: deque[tuple[Any, str]] = deque()
        """When a part began to run, oldest first; the last one runs now."""
        self._seconds: dict[str, float] = {}

    def restart(self) -> None:
        """Forget everything; from now on the time is the loop's own."""
        self._marks.clear()
        self._seconds.clear()
        self._running = [OTHER]
        self._mark()

    def enter(self, phase: str) -> None:
        """This phase runs from now on."""
        self._running = [phase]
        self._mark()

    def begin(self, name: str) -> None:
        """A part takes over until its `end`."""
        self._running.append(name)
        self._mark()

    def end(self) -> None:
        """Go on with what ran before the part begun last."""
        if len(self._running) > 1:
            self._running.pop()
        self._mark()

    def take(self) -> dict[str, float]:
        """Seconds by part up to now, and begin anew; on a GPU up to where its work has got."""
        self._mark()
        self._settle()
        taken, self._seconds = self._seconds, {}
        return taken

    def _mark(self) -> None:
        self._marks.append((self._clock.mark(), self._running[-1]))
        if len(self._marks) >= _SETTLE_AT:
            self._settle()

    def _settle(self) -> None:
        while len(self._marks) > 1:
            (began, part_name), (ended, _) = self._marks[0], self._marks[1]
            seconds = self._clock.seconds(began, ended)
            if seconds is None:
                return
            self._seconds[part_name] = self._seconds.get(part_name, 0.0) + seconds
            self._marks.popleft()


_observers: tuple[Observer, ...] = ()


def observe(*observers: Observer) -> None:
    """These and no others are told of `part`s from now on."""
    global _observers  # noqa: PLW0603 - the process is the rank, see above
    _observers = observers


class step_part:  # noqa: N801 - reads as the statement it is part of
    """`with step_part("all_gather", Axis.FSDP):` around whatever waits for other ranks.

    Args:
        operation: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send or recv.
        axis: name of the group; waiting on `pp` counts as the pipeline's bubble. Empty where
            `operation` is no waiting but a phase, which a pipeline's schedule goes through.
    """

    __slots__ = ("_name", "_told")

    def __init__(self, operation: str, axis: str = "") -> None:
        self._name = f"{operation}/{axis}" if axis else operation
        self._told: tuple[Observer, ...] = ()

    def __enter__(self) -> None:
        """Tell whoever observes, unless this is being compiled."""
        if is_dynamo_compiling():
            return
        self._told = _observers
        if self._told:
            for observer in self._told:
                observer.begin(self._name)

    def __exit__(self, *_: object) -> None:
        """Tell them that it is over."""
        for observer in reversed(self._told):
            observer.end()


def per_step(seconds: Mapping[str, float], *, steps: int) -> dict[str, float]:
    """Means of so many steps, the largest first."""
    ordered = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    return {name: value / steps for name, value in ordered}
