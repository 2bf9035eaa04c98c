"""Write a cycle to a file for `drumline replay`, on request or after an exception on a gang.

SIGUSR1 requests it, which needs the right to run a program in the operator's pod: a capture names
every job and node of the cluster. The next cycle is written with its decisions to one file that
only the operator's user can read, as a whole or not at all. The previous capture is deleted first,
because there may not be space for two.

A cycle with an exception is written to a separate file beside it, named after the fault
(`GangFault.seed`). The newest few are kept, within a limit of bytes.
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
"""With a capture on request, these files fit into the pod's emptyDir (320 MiB)."""
_FAULT_PREFIX: Final = "drumline-fault-"


class CycleCaptures:
    """Remembers that a cycle must be written, and writes it.

    Args:
        file: path of the capture. Its folder exists.
        wake: wakes the scheduler.
    """

    def __init__(self, *, file: Path, wake: Callable[[], None]) -> None:
        self._file = file
        self._wake = wake
        self._wanted = False

    def request(self) -> None:
        """Request a capture of the next cycle."""
        self._wanted = True
        self._wake()

    async def take(
        self,
        cycle: CycleInput,
        *,
        decisions: Decisions,
        fresh: Sequence[GangFault] = (),
    ) -> None:
        """Write this cycle if that was requested or it has a new fault. Log a failing disk.

        Args:
            cycle: the arguments of the cycle.
            decisions: the decisions of the cycle.
            fresh: new faults. The first few get a file each, with the same content.
        """
        files = [fault_file(self._file, fault) for fault in fresh[:MAX_FAULT_FILES]]
        if self._wanted:
            files.append(self._file)
        if not files:
            return
        # Reset before writing: a disk that fails must not make every cycle write.
        self._wanted = False
        capture = Capture(
            snapshot=cycle.snapshot,
            pending=cycle.pending,
            policy=cycle.policy,
            now=cycle.now,
            decisions=decisions,
            set_aside=cycle.set_aside,
            try_budget=cycle.try_budget,
            deferred=cycle.deferred,
            put_off=cycle.put_off,
            passed=cycle.passed,
            known=cycle.known,
            program=__version__,
        )
        # Encoding a large cluster takes a second, so the event loop must not do it.
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
        # Delete the older files first: there may not be space for another one.
        part = target.with_suffix(".part")
        for old in (target, part, *self._too_old(target)):
            old.unlink(missing_ok=True)
        # Write beside the target and rename: a reader never sees a part of a file.
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
        """Return the older files to delete for a new fault, and what dead processes left."""
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
