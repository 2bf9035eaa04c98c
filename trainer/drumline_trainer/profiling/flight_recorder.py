"""The flight recorder: the latest phases and collectives of a rank, in memory, written in a hang.

Collectives are counted by axis since the membership began. All ranks of a group run the same
collectives, so a rank that has begun fewer blocks the rest (`profiling.hang`).

The record is written by a thread other than the hung one: when the agent interrupts the rank, or at
SIGUSR1. A Python signal handler would wait for the main thread, which is the one that hangs; this
thread is woken by the byte that the interpreter's C handler writes.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from drumline_agent.rank_protocol.placement import Placement

KEPT = 256
TIMING = "TORCH_NCCL_ENABLE_TIMING"
"""True if torch watches when a collective starts on its device: an event more for each."""
FOLDER = "flight"
PHASES = "phases"
"""Phases are counted like an axis: every rank enters the same ones."""


class FlightRecorder:
    """An observer (`metrics.step_timer`) of one rank."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._newest: deque[list[Any]] = deque(maxlen=KEPT)
        """Name, number on its axis, began, ended or None."""
        self._open: list[list[Any]] = []
        """The phase, and the collectives within it."""
        self._begun: Counter[str] = Counter()
        self.step = 0
        """Finished steps."""
        self.peers: Mapping[str, Sequence[int]] = {}
        """Ranks of this rank's group on each axis, where these are not all ranks."""

    def restart(self) -> None:
        """Clear everything for a new membership."""
        self._newest.clear()
        self._open.clear()
        self._begun.clear()
        self.peers = {}

    def enter(self, phase: str) -> None:
        """Begin a phase. The phase before and its collectives end."""
        while self._open:
            self.end()
        self._note(phase, axis=PHASES)

    def begin(self, name: str) -> None:
        """Begin a collective."""
        self._note(name, axis=name.partition("/")[2])

    def end(self) -> None:
        """End the innermost collective."""
        if self._open:
            # Events are lists, so that the end is set in place in both queues.
            self._open.pop()[3] = self._clock()

    def to_dict(self, placement: Placement) -> dict[str, Any]:
        """Return the record as JSON values. Any thread may call it."""
        return {
            "rank": placement.rank,
            "world_size": placement.world_size,
            "generation": placement.generation,
            "attempt": placement.attempt,
            "written": self._clock(),
            "step": self.step,
            "begun": dict(self._begun),
            "peers": {axis: list(ranks) for axis, ranks in self.peers.items()},
            # Copies: the hung rank's thread can still change the queues.
            "open": [_entry(event) for event in list(self._open)],
            "newest": [_entry(event) for event in list(self._newest)],
            "stack": _stack(_main_thread_frame()),
        }

    def _note(self, name: str, *, axis: str) -> None:
        # The number precedes the begin, so a rank inside a collective has counted it.
        self._begun[axis] += 1
        event = [name, self._begun[axis], self._clock(), None]
        self._newest.append(event)
        self._open.append(event)


def write_dump(dump: Mapping[str, Any], folder: Path) -> Path:
    """Write `flight/<generation>.<attempt>/rank-<rank>.json` there, atomically.

    Raises:
        OSError: it cannot be written.
    """
    target = folder / FOLDER / f"{dump['generation']}.{dump['attempt']}"
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"rank-{dump['rank']}.json"
    # The thread's id keeps two writers of one record apart.
    partial = path.with_suffix(f".partial-{threading.get_ident()}")
    partial.write_text(json.dumps(dump))
    partial.replace(path)
    return path


def _main_thread_frame() -> FrameType | None:
    # documented, "for internal and specialized purposes only": there is no other way
    frames: Callable[[], dict[int, FrameType]] = getattr(sys, "_current_frames")  # noqa: B009 - see above
    return frames().get(threading.main_thread().ident or 0)


def _stack(innermost: FrameType | None) -> list[str]:
    """List frames, outermost first, without reading source files, which would take time."""
    lines = [
        f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
        for frame, line in traceback.walk_stack(innermost)
    ]
    return lines[::-1] if innermost is not None else []


def _entry(event: list[Any]) -> dict[str, Any]:
    name, number, began, ended = event
    return {"name": name, "number": number, "began": began, "ended": ended}


def dump_on_signal(dump: Callable[[], object], number: int = signal.SIGUSR1) -> bool:
    """Call `dump` in a thread at each signal. Returns False outside the main thread."""
    # Python sets signal handlers in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        return False
    reader, writer = socket.socketpair()
    # The C handler writes a byte and must not block.
    writer.setblocking(False)
    # A handler must exist, or the signal ends the process. The byte carries the signal's number.
    signal.signal(number, _ignore)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def wait() -> None:
        with writer:  # kept open for as long as the handler may write
            while received := reader.recv(1):
                if received[0] == number:
                    dump()

    threading.Thread(target=wait, name="flight", daemon=True).start()
    return True


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the wakeup file descriptor has the signal."""


def set_recorder_defaults(folder: Path | None) -> None:
    """Enable torch's flight recorder of NCCL collectives, written when a collective times out.

    Call this before the process group is made. Variables that are already set are kept.
    """
    # 2000 entries bound the memory of torch's recorder.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    os.environ.setdefault(TIMING, "1")
    if folder is not None:
        target = folder / FOLDER
        with suppress(OSError):  # torch itself reports that it cannot write
            target.mkdir(parents=True, exist_ok=True)
        # torch appends the rank; the first name is for torch 2.10 and later, the second before
        for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
            os.environ.setdefault(name, f"{target}/nccl-rank-")
