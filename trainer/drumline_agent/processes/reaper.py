"""Waiting for every child that ends, as PID 1 must: also for orphans that it inherited."""

from __future__ import annotations

import asyncio
import os
import signal


class Reaper:
    """Waits for all children of this process on SIGCHLD.

    Nothing else in the process may wait for a child: it would take the exit status away.
    """

    def __init__(self) -> None:
        self._watched: dict[int, asyncio.Future[int]] = {}
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def watch(self, pid: int) -> asyncio.Future[int]:
        """Exit code of a child once it ends; negative for a signal.

        Call it in the same step of the event loop that starts the child.
        """
        return self._watched.setdefault(pid, asyncio.get_running_loop().create_future())

    @property
    def watched(self) -> list[int]:
        """Process ids of the children that were started here and have not ended."""
        return list(self._watched)

    def _reap(self) -> None:
        # Several children may have ended for one SIGCHLD. Orphans are reaped, too: this is PID 1.
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            future = self._watched.pop(pid, None)
            if future is not None and not future.done():
                future.set_result(os.waitstatus_to_exitcode(status))
