"""A thread that reads event files: storage that hangs holds up nothing else of the agent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from drumline_agent.commands.event_folder import EventFolder
from drumline_agent.commands.progress_lines import ProgressLine

POLL_SECONDS: Final = 5.0


class EventWatch:
    """A reader of one folder in a thread."""

    def __init__(
        self,
        folder: EventFolder,
        *,
        on_progress: Callable[[ProgressLine], None],
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Prepare the thread; it is not started yet.

        Args:
            folder: folder to read.
            on_progress: called in the event loop with what is new.
            poll_seconds: between two looks.
        """
        self._folder = folder
        self._on_progress = on_progress
        self._poll_seconds = poll_seconds
        self._stopped = threading.Event()

    def start(self) -> None:
        """Look from now on, for the running event loop."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, args=(loop,), name="event-files", daemon=True).start()

    def stop(self) -> None:
        """Look no more; a read that hangs is not waited for."""
        self._stopped.set()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopped.wait(self._poll_seconds):
            try:
                progress = self._folder.read()
            except OSError:  # storage that comes and goes is the program's to report
                continue
            if progress is None:
                continue
            try:
                loop.call_soon_threadsafe(self._on_progress, progress)
            except RuntimeError:  # the loop has ended
                return
