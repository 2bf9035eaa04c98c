"""Delivery of a notice to the processes of a command: a signal, a file, or both.

A program that polls for a file needs no handler, which frameworks tend to replace. The file holds
`{"deadline": seconds since 1970}` and exists from the notice until the next attempt.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from drumline_agent.base.events import AgentEvent, log
from drumline_agent.commands.command_process import CommandProcess
from drumline_contract import LaunchSettings, NoticeSignal

FILE_SECONDS: Final = 5.0
"""A file server that takes longer to remove the file does not delay the ranks."""


class EndNotice:
    """The notice of one attempt at a time."""

    def __init__(self, launch: LaunchSettings, *, grace_seconds: float) -> None:
        """Remember how to give notice; none is given yet.

        Args:
            launch: which signal and file.
            grace_seconds: seconds that processes have after the notice.
        """
        self._signal = launch.notice_signal
        self._file = Path(launch.notice_file) if launch.notice_file else None
        self._grace_seconds = grace_seconds
        self._writing: asyncio.Future[None] | None = None
        self._given_at: float | None = None

    @property
    def given(self) -> bool:
        """True if this attempt's processes have the notice."""
        return self._given_at is not None

    @property
    def seconds_left(self) -> float:
        """Seconds left of the grace period. Without a notice it is the whole period."""
        if self._given_at is None:
            return self._grace_seconds
        return max(0.0, self._given_at + self._grace_seconds - time.monotonic())

    async def begin_attempt(self) -> None:
        """Withdraw the notice before new processes are started."""
        self._given_at = None
        if self._file is None:
            return
        # An unfinished write would bring the file back after its removal.
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=FILE_SECONDS)
        # In a thread and bounded, because the folder may be on storage that hangs.
        removing = asyncio.get_running_loop().run_in_executor(None, _remove, self._file)
        await asyncio.wait([removing], timeout=FILE_SECONDS)

    def give(self, processes: Iterable[CommandProcess]) -> None:
        """Give the notice, unless they have it."""
        if self.given:
            return
        # Set before anything is sent: an exit that follows at once is then no fault.
        self._given_at = time.monotonic()
        running = list(processes)
        # The file comes first, so that a handler of the signal finds it.
        if self._file is not None:
            self._writing = asyncio.ensure_future(self._write(self._file, running))
        if self._signal is not NoticeSignal.NONE:
            _send(signal.Signals[self._signal], running)

    async def _write(self, path: Path, running: list[CommandProcess]) -> None:
        """Write the file. Send SIGTERM if that fails and the file is the only notice."""
        deadline = time.time() + self._grace_seconds
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, _replace, path, json.dumps({"deadline": deadline}))
        except OSError as error:
            log(AgentEvent.NOTICE_FILE_FAILED, path=str(path), reason=str(error))
            # The file was the only notice, so use the signal that every program knows.
            if self._signal is NoticeSignal.NONE:
                _send(signal.SIGTERM, running)


def _send(number: int, processes: Iterable[CommandProcess]) -> None:
    for process in processes:
        process.notify(number)


def _replace(path: Path, text: str) -> None:
    """Write a file atomically, so that a reader sees all of it or none.

    Raises:
        OSError: it cannot be written.
    """
    whole = path.with_name(f".{path.name[:200]}.{os.getpid()}")
    whole.write_text(text + "\n")
    whole.replace(path)


def _remove(path: Path) -> None:
    with suppress(OSError):  # it was never written, or its folder is gone
        path.unlink()
