"""The command of a pod, how often it is started, and its settings."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drumline_agent.commands.event_folder import EventFolder
from drumline_agent.commands.own_patterns import PatternReader
from drumline_agent.commands.pattern_watch import PatternWatch
from drumline_agent.commands.progress_lines import ProgressLine, ProgressReader
from drumline_agent.commands.token_bucket import TokenBucket
from drumline_contract import LaunchSettings, LinePattern, PythonProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """The command of a pod and its template's settings."""

    command: Sequence[str]
    launch: LaunchSettings
    gpus: int
    """GPUs of the pod."""
    patterns: Sequence[LinePattern] = ()
    """Progress patterns of the template. Empty: lines of well-known programs are recognized."""

    @classmethod
    def make(cls, command: Sequence[str], *, launch: LaunchSettings, gpus: int) -> LaunchPlan:
        """Read what the template says.

        Args:
            command: program and arguments.
            launch: `spec.template.launch`.
            gpus: GPUs of the pod.

        Raises:
            ContractError: a pattern that is none, or a command that cannot be preloaded.
        """
        if launch.preload:
            PythonProgram.parse(command)
        patterns = [LinePattern.parse(text) for text in launch.progress_patterns]
        return cls(command=command, launch=launch, gpus=gpus, patterns=patterns)

    def event_watch(self, on_progress: Callable[[ProgressLine], None]) -> EventWatch | None:
        """Return a watch of the event files that the template names. None: it names none."""
        if not self.launch.events_folder:
            return None
        folder = EventFolder(Path(self.launch.events_folder), loss_tag=self.launch.loss_tag)
        return EventWatch(folder, on_progress=on_progress)

    def pattern_watch(self) -> PatternWatch:
        """Return a watch that reports patterns without a match."""
        return PatternWatch(group for pattern in self.patterns for group in pattern.groups)

    def progress_reader(
        self, budget: TokenBucket, watch: PatternWatch
    ) -> ProgressReader | PatternReader:
        """Return a reader for a process's lines; its patterns share the time of this budget."""
        if not self.patterns:
            return ProgressReader()
        return PatternReader(self.patterns, budget=budget, watch=watch, clock=time.monotonic)


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
