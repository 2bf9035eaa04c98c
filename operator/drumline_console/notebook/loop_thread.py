"""An event loop in a thread of its own: a notebook's cells run inside one that must go on turning.

The caller waits in its own thread, where Ctrl-C (a notebook's interrupt) reaches it. Then the work
is cancelled, and its connections are closed, before the interrupt goes on.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine, Generator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager
from threading import Thread, current_thread
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Thread that runs coroutines, also several at a time, until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        thread = Thread(target=self._loop.run_forever, name="drumline-notebook", daemon=True)
        thread.start()
        # Also when the connection is dropped: a notebook's cell is run again and again.
        self._end = weakref.finalize(self, _end, self._loop, thread)

    def close(self) -> None:
        """End the thread. No coroutine runs after this."""
        self._end()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work, or raise its exception.

        Raises:
            KeyboardInterrupt: the caller was interrupted. The work has ended.
        """
        with self.started(work) as result:
            return result.result()

    @contextmanager
    def started(self, work: Coroutine[Any, Any, T]) -> Generator[Future[T]]:
        """Start the work and yield its future. Leaving by an exception cancels the work.

        Raises:
            RuntimeError: the thread was closed.
        """
        # A coroutine that never runs would cause a warning.
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("this connection is closed: connect again")
        result: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            task = self._loop.create_task(work)
            task.add_done_callback(lambda done: _hand_over(done, result))
            tasks.append(task)

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # the interrupt came before it was begun
                work.close()
                result.set_exception(CancelledError())

        try:
            # The loop runs in another thread, so every call to it must be thread-safe.
            self._loop.call_soon_threadsafe(begin)
            yield result
        except BaseException:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(cancel)
                # Wait until the work has closed its connections.
                wait([result])
            raise


def _hand_over(done: asyncio.Task[T], result: Future[T]) -> None:
    if done.cancelled():
        result.set_exception(CancelledError())
    elif (error := done.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(done.result())


def _end(loop: asyncio.AbstractEventLoop, thread: Thread) -> None:
    asyncio.run_coroutine_threadsafe(_cancel_all(), loop)
    # A thread cannot join itself.
    if thread is not current_thread():  # the garbage collector runs in any thread
        thread.join()
        loop.close()


async def _cancel_all() -> None:
    """Cancel all work and stop the loop. A second interrupt does not wait for the work."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    asyncio.get_running_loop().stop()
