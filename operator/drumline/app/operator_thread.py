"""The operator's event loop in a thread of its own, beside Kopf in the main thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import uvloop

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
