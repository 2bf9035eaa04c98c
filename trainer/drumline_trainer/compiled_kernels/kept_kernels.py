"""The kernels of one rank: torch's folder, the file read at the start, the file kept afterwards.

A start compiles in the first step, and seldom later (an evaluation, a last batch of another size).
New kernels are kept once the step is done. All ranks have compiled by then, because they
synchronize in each step. Packing and writing run in a thread.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Generator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import torch

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_contract.layout import Layout
from drumline_trainer.checkpoint.errors import CheckpointError
from drumline_trainer.compiled_kernels.archive import MOST_BYTES, RefusedError, seal, unseal
from drumline_trainer.compiled_kernels.machine_folder import CACHE_VARIABLE
from drumline_trainer.compiled_kernels.places import KernelPlace, kernel_place
from drumline_trainer.compiled_kernels.program import Program
from drumline_trainer.compiled_kernels.signing_key import NoKeyError, signing_key

_TRITON_VARIABLE: Final = "TRITON_CACHE_DIR"
_LAST_SECONDS: Final = 60.0
"""Maximum wait for an unfinished file at the end of a run."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedPlace:
    """A place for kept kernels, and the key that they are signed with there."""

    place: KernelPlace
    key: bytes

    @classmethod
    def of(cls, placement: Placement, environ: MutableMapping[str, str]) -> Self | None:
        """Return the place beside the checkpoints.

        None, with a warning, without a place or a key.
        """
        try:
            place = kernel_place(placement)
            if place is None:
                return None
            key = signing_key(in_job=bool(placement.owner), environ=environ)
        except (NoKeyError, OSError, ValueError) as error:
            logger.warning("compiled kernels are not kept for the next start: %s", error)
            return None
        return cls(place=place, key=key)

    def fetch(self, program: Program, folder: Path) -> str:
        """Restore a program's kept kernels into a folder. Return a message about the outcome."""
        where = self.place.where(program.name)
        try:
            # 128 bytes more than the limit leave room for title and signature.
            sealed = self.place.read(program.name, limit=MOST_BYTES + 128)
            if sealed is None:
                return f"none are kept in {where}"
            unseal(sealed, folder, program=program.name, key=self.key)
        except (RefusedError, CheckpointError, OSError) as error:
            logger.warning("compiled kernels in %s are not used: %s", where, error)
            return "compiled anew"
        return f"read from {where}, {len(sealed) / 1e6:.1f} MB"

    def keep(self, program: Program, folder: Path) -> str:
        """Keep the files of a folder. Return a message about the outcome."""
        where = self.place.where(program.name)
        try:
            sealed = seal(folder, program=program.name, key=self.key, began_ns=time.time_ns())
            # A place that is not writable costs the next start a compilation, not this run.
            self.place.write(program.name, sealed)
        except (RefusedError, OSError) as error:
            return f"not kept in {where}: {error}"
        # Prune after the write, so that the newest program is among those that stay.
        with suppress(OSError):  # whoever writes next removes them
            self.place.prune()
        return f"kept in {where}, {len(sealed) / 1e6:.1f} MB"


class NothingCompiled:
    """A run that does not compile."""

    def step_done(self) -> None:
        """Do nothing: there are no kernels to keep."""

    def finish(self) -> None:
        """Do nothing: there is nothing to wait for."""


class KeptKernels:
    """Kernels of one rank in one membership.

    Args:
        program: identifies the kernels.
        folder: the compiler's folder.
        kept: storage beside the checkpoints. None: nothing is kept.
        report: prints a line.
    """

    def __init__(
        self,
        *,
        program: Program,
        folder: Path,
        kept: SignedPlace | None,
        report: Callable[[str], None],
    ) -> None:
        """Begin to count what torch compiles. `open` also restores kept kernels."""
        self._program = program
        self._folder = folder
        # One rank for each pod's program writes. The others would write the same bytes.
        self._kept = kept if program.writes else None
        self._report = report
        self._graphs, self._seconds = _work_of_compiler()
        self._writer: threading.Thread | None = None
        self._outcome = ""

    @classmethod
    def open(
        cls,
        config: TrainerConfig,
        layout: Layout,
        *,
        placement: Placement,
        device: torch.device,
        report: Callable[[str], None],
        above: Path,
        environ: MutableMapping[str, str] = os.environ,
    ) -> Self:
        """Set torch's folder and fill it with kept kernels, before the first layer is compiled.

        Args:
            config: configuration of the run.
            layout: layout of this membership.
            placement: placement of this rank.
            device: device of this rank.
            report: prints a line, on the ranks that print.
            above: a folder of this machine that only this user can write to; created if missing.
            environ: the process's environment.

        Raises:
            OSError: neither this folder nor the one for temporary files is writable.
        """
        # Phase 1: the identity decides the folder's name.
        program = Program.of(config, layout, placement=placement, device=device)
        folder, kept = above / program.folder, SignedPlace.of(placement, environ)
        try:
            # Phase 2: 0700, since torch executes libraries and pickles from this folder.
            above.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Ranks of a pod share the folder. The first one fetches, and the others wait for it.
            with _locked(above / f"{program.folder}.lock"):
                # An in-place restart finds the kernels of the former process.
                if folder.exists():
                    report(f"compiled kernels: those in {folder}")
                elif kept is not None:
                    report(f"compiled kernels: {kept.fetch(program, folder)}")
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            # Phase 3: a private folder serves if the shared one fails.
            folder = Path(tempfile.mkdtemp(prefix="drumline-compiled-"))
            logger.warning("compiled kernels: %s serves instead of %s: %s", folder, above, error)
        # Both variables must be set before torch compiles the first graph.
        environ[CACHE_VARIABLE] = str(folder)
        environ[_TRITON_VARIABLE] = str(folder / "triton")
        return cls(program=program, folder=folder, kept=kept, report=report)

    def step_done(self) -> None:
        """Keep in a thread, after each step, what was compiled since the last look."""
        if self._writer is not None:
            if self._writer.is_alive():
                # Never two writers at once: the next step looks again.
                return
            self._tell()
        graphs, seconds = _work_of_compiler()
        # Cache hits are no new kernels, so the counter of misses decides.
        if graphs == self._graphs:
            return
        self._report(
            f"compiled kernels: {graphs - self._graphs} graphs compiled in"
            f" {seconds - self._seconds:.1f} s"
        )
        self._graphs, self._seconds = graphs, seconds
        if self._kept is not None:
            # A daemon thread: a slow disk must not keep the process alive.
            self._writer = threading.Thread(
                target=self._keep, args=(self._kept,), name="kernels", daemon=True
            )
            self._writer.start()

    def finish(self) -> None:
        """Wait at the end of the run for what is being written, but not for long."""
        if self._writer is not None:
            self._writer.join(_LAST_SECONDS)
            self._tell()

    def _keep(self, kept: SignedPlace) -> None:
        self._outcome = kept.keep(self._program, self._folder)

    def _tell(self) -> None:
        self._writer = None
        self._report(f"compiled kernels: {self._outcome}")


def _work_of_compiler() -> tuple[int, float]:
    """Return how many graphs this process has compiled, not read, and torch's seconds for them."""
    from torch._dynamo.utils import (  # noqa: PLC0415 - torch's compiler, 2 s that other runs do without
        calculate_time_spent,
        counters,
    )

    return counters["inductor"]["fxgraph_cache_miss"], calculate_time_spent()["total_wall_time"]


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Let one process of this machine in at a time."""
    # O_NOFOLLOW: another user could put a link in a shared temporary folder.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # Closing the descriptor releases the lock, also after a crash.
        os.close(descriptor)
