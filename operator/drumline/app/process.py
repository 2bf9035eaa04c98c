"""The process: the operator in a thread, and Kopf in the main thread once it is needed.

The operator has its own loop in another thread. Jobs are reconciled without Kopf, so it is started
again beside the operator if it fails (`kopf_process`).

A new leader starts what waits before it imports Kopf. The import takes half a second of processor
time, and Kopf only reports new specs of pools and queues.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, TypeVar

import uvloop

from drumline.app.operator import Operator
from drumline.kube.credentials import Credentials, discover
from drumline.kube.kinds import Resource
from drumline.settings import Settings

LOOK_SECONDS: Final = 0.5
"""Interval in which signals are looked for before Kopf runs."""
YOUNG_OBJECTS: Final = 50_000
"""Objects after which Python looks for cycles among them. The default of 700 is for small programs.

The lists of a large cluster make a million objects that stay, and are looked through eight times.
"""
_UNUSED_CLIENT: Final = "kubernetes"
"""A client that Kopf imports where it is installed, to log in through it. It takes 10 MiB."""


MALLOC_OPTIONS: Final = {-1: 128 * 1024, -3: 128 * 1024, -8: 1}
"""Options of glibc's allocator: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX.

Texts of lists take megabytes for a moment. By default, glibc keeps such memory for each thread.
"""


def main(settings: Settings) -> None:
    """Run the operator until it is asked to stop."""
    gc.set_threshold(YOUNG_OBJECTS)
    give_back_memory()
    run(
        Operator(settings, credentials=discover(os.environ)),
        credentials=lambda: discover(os.environ),
        identity=settings.identity,
        installation=settings.installation,
    )


def run(
    operator: Operator,
    *,
    credentials: Callable[[], Credentials],
    identity: str,
    installation: str,
) -> None:
    """Run the operator until SIGTERM, SIGINT or its own end.

    Args:
        operator: runs in a thread of its own.
        credentials: credentials for Kopf's loop only, because a token's lock belongs to one loop.
        identity: the name of this process.
        installation: installation whose pools and queues are watched (`scope`).

    Raises:
        BaseException: what made the operator end.
    """
    thread = OperatorThread(operator.run)
    thread.when_ended(operator.settled.set)

    # Signals arrive in the main thread, and the operator's loop is in another one.
    def on_signal(number: int, _frame: FrameType | None = None) -> None:
        thread.call(operator.capture if number == signal.SIGUSR1 else operator.stop)

    async def report(resource: Resource, name: str, version: str) -> None:
        await thread.run(operator.report_spec(resource, name, version=version))

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, on_signal)
    thread.start()
    # Python handles a signal only when this thread runs. One may come just before the wait, or be
    # delivered to another thread.
    while not operator.settled.wait(LOOK_SECONDS):
        pass
    # The first lists stay. Looking through them for cycles stops the loop for up to a second.
    gc.freeze()
    if not thread.ended.is_set():
        with _hidden(_UNUSED_CLIENT):
            from drumline.app import kopf_process  # noqa: PLC0415 - half a second: see above
        kopf_process.run_beside(
            thread,
            registry=lambda: kopf_process.registry_of(
                credentials=credentials(), report=report, installation=installation
            ),
            identity=identity,
            on_signal=on_signal,
        )
    # The operator may have ended by itself. A second stop does no harm.
    thread.call(operator.stop)
    thread.join()


def give_back_memory() -> bool:
    """Let free memory go back to the system early. Return whether the C library can do that."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*option) for option in MALLOC_OPTIONS.items())


@contextmanager
def _hidden(package: str) -> Generator[None]:
    """Let imports of a package fail, unless it is imported already."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # pyright: ignore[reportArgumentType] - Python's own marker
    try:
        yield
    finally:
        del sys.modules[package]


T = TypeVar("T")


class OperatorThread:
    """Runs one coroutine in a loop of its own; the other methods may be called from any thread.

    Args:
        main: the coroutine; the thread ends with it.
    """

    def __init__(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.ended = threading.Event()
        """Set when the coroutine has ended, by itself or because of an error."""
        self._main = main
        self._when_ended: Callable[[], None] = lambda: None
        self._error: BaseException | None = None
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="operator", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call this, and nothing named before, in the thread when it ends; now if it has."""
        self._when_ended = callback
        if self.ended.is_set():
            callback()

    def call(self, callback: Callable[[], None]) -> None:
        """Schedule a call in the loop. Do nothing if the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the operator's loop, and await it in the caller's loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def join(self) -> None:
        """Wait for the end.

        Raises:
            BaseException: what made the coroutine end.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised again by `join`
            self._error = error
        finally:
            self.ended.set()
            self._when_ended()
