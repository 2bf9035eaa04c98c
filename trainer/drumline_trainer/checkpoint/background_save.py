"""A save behind training, in two stages: every rank writes its part, then rank 0 commits.

Threads do both and never meet another rank. Ranks meet at step boundaries only, on the training
thread: when everyone is `ready` (they know it from what every step reduces anyway) they `go_on`
together, which costs two small messages. So no collective of a thread races with training's, and
where training ends or is interrupted nothing waits for the threads: what they leave is an
unfinished folder of this membership, or a whole checkpoint that rank 0 was about to announce.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch
import torch.distributed as dist

from drumline_trainer.sharding.byte_collectives import broadcast_bytes, gather_bytes

T = TypeVar("T")


def run_in_thread(work: Callable[[], T], *, name: str) -> Future[T]:
    """A thread per piece of work: none is left behind by a rank that has been interrupted."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where the outcome is waited for
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


class SaveCanceledError(Exception):
    """The membership has ended, and nobody will commit this save."""


class BackgroundSave:
    """One save of one rank."""

    def __init__(
        self,
        *,
        write: Callable[[Callable[[], None]], bytes],
        commit: Callable[[list[bytes]], bytes],
        device: torch.device,
    ) -> None:
        """Begin to write.

        Args:
            write: writes this rank's part and reports; calls what it is given now and then.
            commit: makes a checkpoint of all ranks' reports, on rank 0; its verdict is for all.
            device: where small messages travel.
        """
        self._commit = commit
        self._device = device
        self._canceled = threading.Event()
        self._reported = False
        self.seconds = 0.0
        """That this rank's threads worked for it."""
        self._work = self._start(lambda: write(self._check))

    @property
    def ready(self) -> bool:
        """Whether this rank need not wait to go on."""
        return self._work.done()

    def advance(self) -> bytes | None:
        """Wait for this rank's thread and for all others'. The verdict, at the end. Collective."""
        done = self._work.result()
        if self._reported:
            return broadcast_bytes(done, device=self._device)
        reports = gather_bytes(done, device=self._device)
        self._reported = True
        if dist.get_rank() == 0:
            self._work = self._start(lambda: self._commit(reports))
        return None

    def cancel(self) -> None:
        """Have the writing end soon; nothing of it will be committed unless rank 0 is at that."""
        self._canceled.set()

    def _check(self) -> None:
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
