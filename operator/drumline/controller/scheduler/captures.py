"""A cycle written down on request, or because a gang raised an exception, for `drumline replay`.

Requested by SIGUSR1, which needs the right to run a program in the operator's pod: a capture names
every job and node of the cluster. The next cycle is written, with what it decided, to one file that
only the operator's user can read, whole or not at all. The one before it goes first: there may be
no room for two. A cycle with an exception is written to a file of its own beside it, named after
the fault (`GangFault.seed`). The newest few are kept, within a limit of bytes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from drumline import __version__
from drumline.telemetry import logs
from drumline_scheduler.capture import MAX_BYTES, Capture, encode
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Decisions, GangFault

log = logs.get("drumline.controller.scheduler.captures")

MAX_FAULT_FILES: Final = 3
MAX_FAULT_BYTES: Final = 16 * 1024 * 1024
"""Together with a capture on request they fit into the pod's emptyDir (320 MiB)."""
_FAULT_PREFIX: Final = "drumline-fault-"


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
        cycle: CycleInput,
        *,
        decisions: Decisions,
        fresh: Sequence[GangFault] = (),
    ) -> None:
        """Write this cycle if that was requested or it has a new fault; a failing disk is logged.

        Args:
            cycle: the arguments of the cycle.
            decisions: of the cycle.
            fresh: new faults; the first few get a file each, with the same content.
        """
        files = [fault_file(self._file, fault) for fault in fresh[:MAX_FAULT_FILES]]
        if self._wanted:
            files.append(self._file)
        if not files:
            return
        self._wanted = False
        capture = Capture(
            snapshot=cycle.snapshot,
            pending=cycle.pending,
            policy=cycle.policy,
            now=cycle.now,
            decisions=decisions,
            set_aside=cycle.set_aside,
            program=__version__,
        )
        document = await asyncio.to_thread(encode, capture)
        for file in files:
            try:
                await asyncio.to_thread(self._write, document, file)
            except OSError as error:
                log.warning("capture_failed", file=str(file), error=str(error))
            else:
                log.info("captured", file=str(file), bytes=len(document))

    def _write(self, document: bytes, target: Path) -> None:
        limit = MAX_BYTES if target == self._file else MAX_FAULT_BYTES
        if len(document) > limit:
            raise OSError(f"longer than {limit >> 20} MiB")
        part = target.with_suffix(".part")
        for old in (target, part, *self._too_old(target)):
            old.unlink(missing_ok=True)
        try:
            with os.fdopen(
                os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
            ) as file:
                file.write(document)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        part.replace(target)

    def _too_old(self, target: Path) -> Sequence[Path]:
        """Return the older files that make room for a fault's, and what dead processes left."""
        if target == self._file:
            return ()
        left = self._file.parent.glob(f"{_FAULT_PREFIX}*.part")
        faults = sorted(self._file.parent.glob(f"{_FAULT_PREFIX}*.json"), key=_age)
        return (*left, *faults[: max(0, len(faults) - MAX_FAULT_FILES + 1)])


def fault_file(file: Path, fault: GangFault) -> Path:
    """Return where the capture of a fault is written, beside the captures on request."""
    return file.with_name(f"{_FAULT_PREFIX}{fault.seed}.json")


def _age(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0
