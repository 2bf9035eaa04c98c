"""What a rank did last: the newest phases and collectives, kept in memory, written down in a hang.

Collectives are counted by axis since the membership began. All ranks of a group run the same ones,
so whoever has begun fewer keeps the others waiting (`profiling.hang`).

Written by another thread than the one that waits: by the agent's order to leave, or by SIGUSR1.
Python's own signal handler would wait for the main thread, which is the one that hangs; what wakes
the thread here is the byte that the interpreter's C handler writes.
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

from drumline_trainer.rank_protocol.placement import Placement

KEPT = 256
FOLDER = "flight"
PHASES = "phases"
"""Counted like an axis: every rank passes the same ones."""


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
        """Ranks of this rank's group on each axis, where that is not all of them."""

    def restart(self) -> None:
        """Count from the beginning, with the ranks of a new membership."""
        self._newest.clear()
        self._open.clear()
        self._begun.clear()
        self.peers = {}

    def enter(self, phase: str) -> None:
        """A phase ends all that is open."""
        while self._open:
            self.end()
        self._note(phase, axis=PHASES)

    def begin(self, name: str) -> None:
        """A collective begins."""
        self._note(name, axis=name.partition("/")[2])

    def end(self) -> None:
        """The innermost is over."""
        if self._open:
            self._open.pop()[3] = self._clock()

    def to_dict(self, placement: Placement) -> dict[str, Any]:
        """Plain JSON values; may be asked by any thread."""
        return {
            "rank": placement.rank,
            "world_size": placement.world_size,
            "generation": placement.generation,
            "attempt": placement.attempt,
            "written": self._clock(),
            "step": self.step,
            "begun": dict(self._begun),
            "peers": {axis: list(ranks) for axis, ranks in self.peers.items()},
            "open": [_entry(one) for one in list(self._open)],
            "newest": [_entry(one) for one in list(self._newest)],
            "stack": _stack(sys._current_frames().get(threading.main_thread().ident or 0)),  # noqa: SLF001
        }

    def _note(self, name: str, *, axis: str) -> None:
        self._begun[axis] += 1
        noted = [name, self._begun[axis], self._clock(), None]
        self._newest.append(noted)
        self._open.append(noted)


def write_dump(dump: Mapping[str, Any], folder: Path) -> Path:
    """Write `flight/<generation>.<attempt>/rank-<rank>.json` there; whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    target = folder / FOLDER / f"{dump['generation']}.{dump['attempt']}"
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"rank-{dump['rank']}.json"
    partial = path.with_suffix(f".partial-{threading.get_ident()}")
    partial.write_text(json.dumps(dump))
    partial.replace(path)
    return path


def _stack(innermost: FrameType | None) -> list[str]:
    """Outermost first. No source is read: others wait for whoever asks."""
    lines = [
        f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
        for frame, line in traceback.walk_stack(innermost)
    ]
    return lines[::-1] if innermost is not None else []


def _entry(noted: list[Any]) -> dict[str, Any]:
    name, number, began, ended = noted
    return {"name": name, "number": number, "began": began, "ended": ended}


def dump_on_signal(dump: Callable[[], object], number: int = signal.SIGUSR1) -> bool:
    """Call `dump` in a thread whenever the signal comes. False outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return False
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def wait() -> None:
        with writer:  # held as long as anybody may write
            while came := reader.recv(1):
                if came[0] == number:
                    dump()

    threading.Thread(target=wait, name="flight", daemon=True).start()
    return True


def set_recorder_defaults(folder: Path | None) -> None:
    """Let torch keep its own record of NCCL's collectives, and write it when one times out.

    To be called before the process group is made; what the environment says already stays.
    """
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    if folder is not None:
        target = folder / FOLDER
        with suppress(OSError):  # then torch says that it cannot write
            target.mkdir(parents=True, exist_ok=True)
        # torch adds the rank; the first name is of torch 2.10 and later, the other of those before
        for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
            os.environ.setdefault(name, f"{target}/nccl-rank-")
