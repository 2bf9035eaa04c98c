"""PID 1's duty: every child that ends is waited for, also those we only inherited."""

from __future__ import annotations

import asyncio
import os
import signal


class Reaper:
    """Waits for all children of this process on SIGCHLD.

    Nothing else in the process may wait for a child: the exit status goes to whoever asks here.
    """

    def __init__(self) -> None:
        self._watched: dict[int, asyncio.Future[int]] = {}
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def watch(self, pid: int) -> asyncio.Future[int]:
        """Exit code (negative: signal) of a child of ours, once it ends.

        Call it in the same step of the event loop that made the child.
        """
        return self._watched.setdefault(pid, asyncio.get_running_loop().create_future())

    def _reap(self) -> None:
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
