"""The device of a process on the stand-in, which can fail as a GPU and its links do.

So can the process itself: before it calls the next operation.
"""

from __future__ import annotations

import hashlib
import threading
from enum import Enum

_BLOCK = bytes(1 << 20)
"""A digest of it takes a millisecond, without the interpreter's lock."""


class Device:
    """What streams ask before they start an operation, and before it may end."""

    def __init__(self) -> None:
        self._runs = threading.Event()
        self._links = threading.Event()
        self._calls = threading.Event()
        for each in (self._runs, self._links, self._calls):
            each.set()

    def call_nothing(self) -> None:
        """The process stands still: it waits for a file, or in a loop of its own."""
        self._calls.clear()

    def hang(self) -> None:
        """A kernel does not end: no operation that is called from now on is started."""
        self._runs.clear()

    def lose_links(self) -> None:
        """Operations are started, and nothing arrives."""
        self._links.clear()

    def mend_links(self) -> None:
        """What is called from now on arrives again."""
        self._links.set()

    def wait_to_call(self) -> None:
        """Until the process comes to it."""
        self._calls.wait()

    def wait_to_start(self) -> None:
        """Until the kernels before have ended."""
        self._runs.wait()

    def wait_for_links(self) -> None:
        """Until bytes come and go."""
        self._links.wait()


DEVICE = Device()


class Waiting(Enum):
    """How a thread waits for its device."""

    BLOCKED = "blocked"
    SPINNING = "spinning"
    """As CUDA by default: it burns a processor, and leaves the interpreter's lock alone."""
    SPINNING_LOCKED = "spinning locked"
    """As a loop in Python that asks a work whether it is completed: the lock is given up every few
    milliseconds only."""

    def until(self, ended: threading.Event) -> None:
        """Wait for it."""
        match self:
            case Waiting.BLOCKED:
                ended.wait()
            case Waiting.SPINNING:
                while not ended.is_set():
                    hashlib.sha256(_BLOCK)
            case Waiting.SPINNING_LOCKED:
                while not ended.is_set():
                    pass
