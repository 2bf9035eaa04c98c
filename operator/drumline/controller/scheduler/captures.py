"""A cycle written down on request, for `drumline replay`.

Requested by SIGUSR1, which needs the right to run a program in the operator's pod: a capture names
every job and node of the cluster. The next cycle is written, with what it decided, to one file that
only the operator's user can read, whole or not at all. The one before it goes first: there may be
no room for two.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from drumline import __version__
from drumline.scheduling.capture import MAX_BYTES, Capture, encode
from drumline.scheduling.decisions import Decisions
from drumline.scheduling.model import Gang, Policy, Snapshot
from drumline.telemetry import logs

log = logs.get("drumline.controller.scheduler.captures")


class CycleCaptures:
    """Remembers that a cycle is to be written, and writes it.

    Args:
        file: where to; its folder exists.
        wake: has the scheduler decide.
    """

    def __init__(self, *, file: Path, wake: Callable[[], None]) -> None:
        self._file = file
        self._wake = wake
        self._wanted = False

    def request(self) -> None:
        """Have the next cycle written."""
        self._wanted = True
        self._wake()

    async def take(
        self,
        *,
        snapshot: Snapshot,
        pending: tuple[Gang, ...],
        policy: Policy,
        now: float,
        decisions: Decisions,
    ) -> None:
        """Write this cycle if a capture was requested; a failing disk is only logged."""
        if not self._wanted:
            return
        self._wanted = False
        capture = Capture(
            snapshot=snapshot,
            pending=pending,
            policy=policy,
            now=now,
            decisions=decisions,
            program=__version__,
        )
        try:
            size = await asyncio.to_thread(self._write, capture)
        except OSError as error:
            log.warning("capture_failed", file=str(self._file), error=str(error))
        else:
            log.info("captured", file=str(self._file), bytes=size)

    def _write(self, capture: Capture) -> int:
        document = encode(capture)
        if len(document) > MAX_BYTES:
            raise OSError(f"longer than {MAX_BYTES >> 20} MiB")
        part = self._file.with_suffix(".part")
        for old in (self._file, part):
            old.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(document)
        part.replace(self._file)
        return len(document)
