"""Decide a cycle in a thread, and stop a cycle that takes too long.

While the thread decides, the event loop continues: it renews the lease and answers probes. It
checks the thread several times a second. If one gang, or a whole attempt, has used too much
processor time or memory, the thread gets a `CycleCutError` (`PyThreadState_SetAsyncExc`). The error
becomes the answer of the gang that was being decided. All other gangs are then decided without it.
Processor time counts, not the time of day, so a busy machine does not stop a cycle.

This is the last safeguard, because searches are bounded by themselves (`drumline_scheduler.work`).
It stops Python code. It cannot stop a call into C that never returns, or one large allocation.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from drumline_scheduler.work import CycleCutError, Frame, TimeLimit, Work

Result = TypeVar("Result")

LOOK_SECONDS: Final = 0.25
_PAGE: Final = 4096
_STATM: Final = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleLimits:
    """Limits of one cycle."""

    gang_seconds: float = 5.0
    """Processor time for one gang in one phase."""
    probe_seconds: float = 1.0
    """Processor time for an attempt that only finds out which gang takes too long."""
    attempt_seconds: float = 60.0
    """Processor time for all gangs together. A cycle that is cut begins again with new limits."""
    growth_bytes: int = 1 << 30
    """Growth of the process during one attempt."""
    look_seconds: float = LOOK_SECONDS
    """Time between two checks."""


class CycleThread(Generic[Result]):
    """One call in a thread.

    Args:
        call: function of the thread. Its argument shows what the function works on.
        limits: limits of its use.
        time_limit: time after which the function tries nothing more.
    """

    def __init__(
        self,
        call: Callable[[Work], Result],
        *,
        limits: CycleLimits | None = None,
        time_limit: TimeLimit | None = None,
    ) -> None:
        self._call = call
        self._limits = limits or CycleLimits()
        self._work = Work(limit=time_limit)
        self._thread = threading.Thread(target=self._run, name="cycle", daemon=True)
        self._lock = threading.Lock()
        self._was_cut = False
        self._is_running = False
        self._done: asyncio.Future[Result] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # What the last looks saw.
        self._attempt = 0
        self._attempt_began = 0.0
        self._resident = 0
        self._seen: dict[int, tuple[Frame, float]] = {}
        self._looks: dict[str, int] = {}

    async def result(self) -> Result:
        """Start the thread and return its result.

        Raises:
            CycleCutError: the thread was stopped and no gang explains it.
            Exception: the call raised it.
        """
        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()
        self._is_running = True
        self._thread.start()
        try:
            while not self._done.done():
                await asyncio.wait([self._done], timeout=self._limits.look_seconds)
                if not self._done.done():
                    self._look()
            return self._done.result()
        finally:
            if not self._done.done():  # cancelled: nobody waits for the thread any more
                self._done.cancel()
                self._cut()

    # The lock orders the end of the call and a cut: after it, no exception may be on its way.
    def _run(self) -> None:
        result: Result | None = None
        error: BaseException | None = None
        try:
            try:
                result = self._call(self._work)
            finally:
                with self._lock:
                    self._is_running = False
                if self._was_cut:
                    _await_exception()
        except BaseException as raised:  # noqa: BLE001 - it is raised where the result is awaited
            error = raised
        assert self._loop is not None  # noqa: S101 - set before the thread starts
        with suppress(RuntimeError):  # the event loop may be closed by now
            self._loop.call_soon_threadsafe(self._deliver, result, error)

    def _deliver(self, result: Result | None, error: BaseException | None) -> None:
        done = self._done
        if done is None or done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # pyright: ignore[reportArgumentType] - the call's own result

    def _look(self) -> None:
        """Stop the thread if it uses too much."""
        work, limits, ident = self._work, self._limits, self._thread.ident
        frames, attempt, is_probe = list(work.frames), work.attempts, work.is_probe
        used = None if ident is None else _used_by(ident)
        if used is None:
            return
        if attempt != self._attempt:
            self._attempt = attempt
            self._measure_from(used)
        # 1. The time of each part since it was first seen.
        seen: dict[int, tuple[Frame, float]] = {}
        for frame in frames:
            known = self._seen.get(id(frame))
            seen[id(frame)] = known if known is not None and known[0] is frame else (frame, used)
        self._seen = seen
        if frames:
            uid = frames[-1].gang.uid
            self._looks[uid] = self._looks.get(uid, 0) + 1
        # 2. The innermost gang that takes too long, or the one that was seen most often.
        for frame in reversed(frames):
            if used - seen[id(frame)][1] > limits.gang_seconds:
                self._measure_from(used)
                self._cut(frame)
                return
        most = limits.probe_seconds if is_probe else limits.attempt_seconds
        is_long = used - self._attempt_began > most
        is_large = _resident_bytes() - self._resident > limits.growth_bytes
        if is_long or is_large:
            often = max(frames, key=lambda frame: self._looks.get(frame.gang.uid, 0), default=None)
            self._measure_from(used)
            self._cut(often)

    # After a cut too: the thread still answers for the attempt that ended, and has begun no other.
    def _measure_from(self, used: float) -> None:
        """Count time and memory from now on.

        Args:
            used: processor seconds of the thread so far.
        """
        self._attempt_began, self._resident = used, _resident_bytes()
        self._seen, self._looks = {}, {}

    def _cut(self, frame: Frame | None = None) -> None:
        """Raise in the thread, and blame a gang if one is known."""
        with self._lock:
            if self._is_running and self._thread.ident is not None:
                self._was_cut = True
                self._work.blamed = frame
                _raise_in(self._thread.ident, CycleCutError)


def _raise_in(ident: int, error: type[BaseException]) -> None:
    """Raise an exception in a thread before its next instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))


def _await_exception() -> None:
    """Wait for an exception that is still on its way to this thread. It arrives at a jump.

    CPython 3.11 cannot cancel it: a call with None leaves a flag of the interpreter set that only a
    delivered exception clears. Then every thread would check for exceptions at each jump, and a
    profiler or tracer would never return.
    """
    with suppress(CycleCutError):
        for _ in range(8):
            pass


def _used_by(ident: int) -> float | None:
    """Return the processor seconds of a thread, or None if it has ended."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(ident))
    except OSError:
        return None


def _resident_bytes() -> int:
    """Return the resident memory of this process in bytes, or 0 if it is not known."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0
