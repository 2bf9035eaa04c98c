"""Exceptions on one gang: how a phase names the gang that it decides, and what is kept of them.

An exception that is raised while one gang is decided becomes that gang's answer (`SchedulerError`);
`fault_isolation` decides all other gangs.
"""

from __future__ import annotations

import traceback
from collections.abc import Container, Iterator
from enum import StrEnum
from pathlib import PurePath
from types import TracebackType
from typing import Final

from drumline_scheduler.decisions import GangFault
from drumline_scheduler.model import Admitted, Gang, InvalidSnapshotError
from drumline_scheduler.rejections import bounded
from drumline_scheduler.work import Frame, current

_MAX_ERROR_CHARS: Final = 200
_MAX_FRAMES: Final = 16


class Stage(StrEnum):
    """The part of a cycle in which a gang is decided; the value of a metric's label."""

    REPAIR = "repair"
    START = "start"
    """Start of a gang in its nominated slots."""
    RELOCATE = "relocate"
    ADMIT = "admit"
    GROW = "grow"
    SURPLUS = "surplus"
    MOVE = "move"
    PREEMPT = "preempt"
    """Check of a running gang as a candidate for preemption."""
    EXPLAIN = "explain"
    QUEUE = "queue"
    """Eviction for the queue of the gang: it is drained, or its budget is spent."""
    FORECAST = "forecast"
    """A forecast of starts, outside of its cycles."""
    CACHE = "cache"
    """An exception that did not return without the cache of earlier cycles."""
    CYCLE = "cycle"
    """Any part of the cycle outside the other stages."""


class GangError(Exception):
    """An exception, the cause of this one, that was raised while one gang was decided."""

    def __init__(self, *, gang: Gang, stage: Stage) -> None:
        super().__init__(f"{stage} {gang.key}")
        self.gang = gang
        self.stage = stage


class deciding:  # noqa: N801 - a context manager that reads as a phrase: `with deciding(gang, ...)`
    """Name the gang that the body decides. Costs nothing but a call where nothing is raised."""

    __slots__ = ("_work", "began", "gang", "stage")

    def __init__(self, gang: Gang, stage: Stage) -> None:
        self.gang = gang
        self.stage = stage
        self._work = work = current()
        self.began = 0 if work is None else work.steps

    def __enter__(self) -> None:
        """Enter the body."""
        if self._work is not None:
            self._work.frames.append(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Name the gang in an exception of the body, unless an inner body has done so.

        Raises:
            GangError: the body raised.
        """
        blamed: Frame = self
        if self._work is not None:
            blamed = self._work.blamed or self
            self._work.frames.pop()
        if isinstance(error, Exception) and not isinstance(error, GangError | InvalidSnapshotError):
            raise GangError(gang=blamed.gang, stage=self.stage) from error


def gangs_in_frames(error: BaseException) -> list[Gang]:
    """Return the gangs that the local variables of an exception's frames hold, innermost first.

    A loop over many gangs needs no `deciding` for each: its variable names the gang.
    """
    gangs: dict[str, Gang] = {}
    for value in _variables(error):
        if isinstance(value, Gang):
            gangs.setdefault(value.uid, value)
    return list(gangs.values())


def uids_in_frames(error: BaseException, known: Container[str]) -> list[str]:
    """Return the uids in the local variables of an exception's frames, innermost first.

    A variable is a gang, a value with the uid of a gang, or a uid.

    Args:
        error: the exception.
        known: uids of all gangs.
    """
    uids: dict[str, None] = {}
    for value in _variables(error):
        uid = value if isinstance(value, str) else getattr(value, "uid", None)
        if isinstance(uid, str) and uid in known:
            uids.setdefault(uid)
    return list(uids)


def _variables(error: BaseException) -> Iterator[object]:
    """Yield the local variables of an exception's frames, innermost first, gangs for running ones.

    A loop variable comes after the parameters, so the variables of a frame are reversed.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        for value in reversed(list(frame.f_locals.values())):
            yield value.gang if isinstance(value, Admitted) else value


def message_of(fault: GangFault) -> str:
    """Return the message of a job's condition about its fault."""
    return bounded(
        f"the scheduler failed on this job (stage {fault.stage}: {fault.error}). Other jobs are"
        " not affected. The scheduler tries the job again. Please report it; the operator's log"
        f" has details under {fault.seed}"
    )


def fault_about(key: str, *, uid: str, stage: str, error: BaseException) -> GangFault:
    """Convert an exception to a fault, without paths of this machine.

    Args:
        key: `namespace/name` of the gang.
        uid: UID of the gang.
        stage: part of the cycle that raised.
        error: the exception.
    """
    frames = [
        (f"{PurePath(frame.filename).name}:{frame.lineno}", frame.name)
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    try:
        text = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    except Exception:  # noqa: BLE001 - its own text may be what raises
        text = type(error).__name__
    where = f" ({frames[-1][0]})" if frames else ""
    return GangFault(
        key=key,
        uid=uid,
        stage=stage,
        error=f"{text[:_MAX_ERROR_CHARS]}{where}",
        trace=" < ".join(f"{place} {name}" for place, name in reversed(frames[-_MAX_FRAMES:])),
    )
