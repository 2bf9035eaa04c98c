"""A save during training, in two stages: every rank writes its files, then rank 0 commits.

Threads do both and use no collectives. The first one copies the state before it writes, while the
next step computes gradients. `finish_copy` must return before anything changes the state.

Ranks meet at step boundaries only, on the training thread: once all are `ready` (known from the
all-reduce of every step) they `advance` together, which costs two small messages. So no collective
of a thread races with training's, and where training ends or is interrupted nothing waits for the
threads: they leave an unfinished folder of this membership, or a complete checkpoint that rank 0
had not yet announced.

Example, with two ranks. Step 100: both `begin`. Step 103: rank 0 has written. Step 107: rank 1 has
too, both advance, and rank 0's thread commits. Step 108: both advance and know the outcome.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

import torch
import torch.distributed as dist

from drumline_trainer.sharding.byte_collectives import broadcast_bytes, gather_bytes

T = TypeVar("T")
_LOOK_SECONDS: Final = 0.5


def run_in_thread(work: Callable[[], T], *, name: str) -> Future[T]:
    """Run in a new daemon thread, so that an interrupted rank keeps no pool of idle threads."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the outcome is waited for
            outcome.set_exception(error)

    # daemon: a write to storage that hangs must not keep the process from ending.
    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


class SaveCanceledError(Exception):
    """The membership has ended; this save will not be committed."""


class BackgroundSave:
    """One save of one rank."""

    def __init__(
        self,
        *,
        copy: Callable[[Callable[[], None]], None],
        write: Callable[[Callable[[], None]], bytes],
        commit: Callable[[list[bytes]], bytes],
        device: torch.device,
    ) -> None:
        """Begin to copy and to write.

        Args:
            copy: copies the state that `write` writes; calls its argument regularly.
            write: writes this rank's files and returns its report; calls its argument regularly.
            commit: commits all ranks' reports, on rank 0; its encoded outcome goes to all ranks.
            device: device of the tensors in small messages.
        """
        self._commit = commit
        self._device = device
        self._canceled = threading.Event()
        self._copied = threading.Event()
        self._reported = False
        self._chunks = 0
        self.seconds = 0.0
        """Busy time of this rank's threads."""

        def copy_and_write() -> bytes:
            try:
                copy(self._check)
            finally:  # `advance` raises an error of the copy
                self._copied.set()
            return write(self._check)

        self._work = self._start(copy_and_write)

    @property
    def ready(self) -> bool:
        """True if this rank can advance without waiting."""
        return self._work.done()

    def finish_copy(self, *, progress: Callable[[], None] = lambda: None) -> None:
        """Wait until the state may change. `progress`: see `advance`."""
        self._wait(self._copied.wait, progress)

    def advance(self, *, progress: Callable[[], None] = lambda: None) -> bytes | None:
        """Wait for all ranks' threads. Returns the outcome after the last stage. Collective.

        Args:
            progress: called now and then while this rank's thread writes, and not while it stands
                still: who watches this thread may tell a slow storage from one that is gone.
        """
        # 1. Every rank waits for its own thread. No collective runs while threads write.
        done = self._finished(progress)
        if self._reported:
            return broadcast_bytes(done, device=self._device)
        # 2. All files are written: exchange the reports, and let rank 0 commit in its thread.
        reports = gather_bytes(done, device=self._device)
        self._reported = True
        if dist.get_rank() == 0:
            self._work = self._start(lambda: self._commit(reports))
        return None

    def cancel(self) -> None:
        """Stop writing soon; nothing will be committed unless rank 0 is committing already."""
        self._canceled.set()

    def _finished(self, progress: Callable[[], None]) -> bytes:
        self._wait(lambda timeout: bool(wait([self._work], timeout).done), progress)
        return self._work.result()

    def _wait(self, until: Callable[[float], bool], progress: Callable[[], None]) -> None:
        chunks = self._chunks
        # Look now and then, so that the heartbeat shows whether bytes still move.
        while not until(_LOOK_SECONDS):
            if self._chunks != chunks:
                chunks = self._chunks
                progress()

    def _check(self) -> None:
        self._chunks += 1
        # Between chunks: a write cannot be interrupted, but the next one need not begin.
        if self._canceled.is_set():
            raise SaveCanceledError

    def _start(self, work: Callable[[], bytes]) -> Future[bytes]:
        def timed() -> bytes:
            began = time.monotonic()
            try:
                return work()
            finally:
                self.seconds += time.monotonic() - began

        return run_in_thread(timed, name="checkpoint")
