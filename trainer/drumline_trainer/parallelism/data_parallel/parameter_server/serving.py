"""An asynchronous server: rows of the weights, and a thread for each worker that asks for them.

Each worker's thread takes its pushes and pulls in turn; all share the weights, the optimizer and
the clocks under one lock. A push is applied when it comes. A pull waits until its worker is no
longer too far ahead (`clocks`). Messages of a worker and the answers:

    worker -> server    [what, learning rate]   then, for a push, its row of gradients
    server -> worker    [whether it went well]  then the row of weights

A failure on one connection is reported on all others, so that no worker waits for one that is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import IntEnum
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from drumline_trainer.optimization.optimizer import Optimizer
from drumline_trainer.parallelism.data_parallel.parameter_server.clocks import Clocks

PATIENCE_SECONDS = 600.0
"""Longest wait of a pull for the slowest worker: as for any collective."""


class Tag(IntEnum):
    """Separates the messages of two ranks that are worker and server of each other."""

    QUESTION = 1
    ANSWER = 2


class WorkerRequest(IntEnum):
    """Requests of a worker."""

    PULL = 0
    PUSH_AND_PULL = 1
    LEAVE = 2


class AsynchronousServer:
    """State that the threads of one server share."""

    def __init__(
        self,
        weights: Tensor,
        optimizer: Optimizer,
        *,
        unpack: Callable[[Tensor], list[Tensor]],
        clocks: Clocks,
    ) -> None:
        """Serve a row of weights, which the optimizer updates in place.

        Args:
            weights: weights in host memory.
            optimizer: optimizer of the slices in that row.
            unpack: a row of gradients as gradients of those slices.
            clocks: clocks of the workers.
        """
        self._weights = weights
        self._optimizer = optimizer
        self._unpack = unpack
        self._clocks = clocks
        self._changed = threading.Condition()
        self._failure = ""
        self._missed: list[int] = []
        self._most_ahead = 0
        self._threads: list[threading.Thread] = []

    def listen(self, worker: int, *, rank: int, group: ProcessGroup) -> None:
        """Serve this worker, whose leader has that rank, until it leaves.

        Args:
            worker: number of the worker.
            rank: its leader's rank in the group.
            group: group of this server and the worker.
        """
        thread = threading.Thread(
            target=self._serve, args=(worker, rank, group), name=f"server of {rank}", daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def finish(self) -> None:
        """Wait until all workers have left."""
        for thread in self._threads:
            thread.join()
        self._raise_failure()

    def push(self, worker: int, row: Tensor, *, rate: float) -> None:
        """Apply a worker's gradients.

        Args:
            worker: number of the worker.
            row: gradients of the served slices, flat fp32.
            rate: learning rate of the worker's step.
        """
        with self._changed:
            self._optimizer.update(self._unpack(row), rate=rate)
            self._missed.append(self._clocks.push(worker))
            self._changed.notify_all()

    def pull(self, worker: int, into: Tensor) -> None:
        """Copy the present weights into `into` [n], once this worker may have them.

        Raises:
            ConnectionError: a worker is gone, or does not arrive in time.
        """
        with self._changed:
            came = self._changed.wait_for(
                lambda: self._failure or self._clocks.may_pull(worker), timeout=PATIENCE_SECONDS
            )
            self._raise_failure()
            if not came:
                raise ConnectionError("parameter server: timed out waiting for the slowest worker")
            self._clocks.pull(worker)
            self._most_ahead = max(self._most_ahead, self._clocks.ahead(worker))
            into.copy_(self._weights)

    def take_staleness(self) -> tuple[list[int], int]:
        """Return the missed updates of each push since the last call, and the most steps ahead."""
        with self._changed:
            taken = (self._missed, self._most_ahead)
            self._missed, self._most_ahead = [], 0
            return taken

    def _serve(self, worker: int, rank: int, group: ProcessGroup) -> None:
        """Serve one worker in a thread of its own, reusing one row of memory."""
        row = torch.empty_like(self._weights)
        header = torch.empty(2, dtype=torch.float64)
        try:
            while True:
                dist.recv(header, src=rank, group=group, tag=Tag.QUESTION)
                what, rate = cast("list[float]", header.tolist())  # pyright: ignore[reportUnknownMemberType] - torch does not say what is in the list
                if what == WorkerRequest.LEAVE:
                    return
                if what == WorkerRequest.PUSH_AND_PULL:
                    dist.recv(row, src=rank, group=group, tag=Tag.QUESTION)
                    self.push(worker, row, rate=rate)
                self._answer(worker, row, rank=rank, group=group)
        except Exception as error:  # noqa: BLE001 - the boundary of a thread: the other threads report it
            self._fail(f"parameter server: rank {rank}: {error}")

    def _answer(self, worker: int, row: Tensor, *, rank: int, group: ProcessGroup) -> None:
        try:
            self.pull(worker, row)
        except ConnectionError:
            dist.send(torch.zeros(1), dst=rank, group=group, tag=Tag.ANSWER)
            raise
        dist.send(torch.ones(1), dst=rank, group=group, tag=Tag.ANSWER)
        dist.send(row, dst=rank, group=group, tag=Tag.ANSWER)

    def _fail(self, failure: str) -> None:
        with self._changed:
            self._failure = self._failure or failure.partition("\n")[0]
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure:
            raise ConnectionError(self._failure)
