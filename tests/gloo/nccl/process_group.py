"""A process group over Gloo that fails as ProcessGroupNCCL does.

What a survivor of a lost peer meets under NCCL and never under Gloo (docs/decisions/0030):

- A call returns at once; operations run in order on a stream, each pair of peers' on another.
- The communicator is made by the first operation, unless the group was given a `device_id`.
- A lost peer fails no wait. The kernel spins until the communicator is aborted, then every wait
  returns without an error, and what it leaves in the output is partial.
- Only the next call raises, with NCCL's text.
- A watchdog ends the process, unless TORCH_NCCL_ASYNC_ERROR_HANDLING says 0.

Tensors are on the CPU, where the host cannot run ahead of the stream: so `wait` waits for the
result, as reading it would on a GPU.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage] - documented

NAME = "nccl_standin"
REMOTE_ERROR = (
    "NCCL error: remote process exited or there was a network error, NCCL version 2.29.7\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting"
    " prematurely."
)
ASYNC_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_TEARING_DOWN = "3"
"""torch's default: SkipCleanUp."""

Operation = Callable[[Any, list[Tensor], list[Tensor]], Any]
"""Of Gloo's group, on copies of the inputs and the outputs; gives Gloo's work."""


class StreamWork(dist.Work):
    """One operation on a stream."""

    def __init__(self, *, inputs: list[Tensor], outputs: list[Tensor], run: Operation) -> None:
        super().__init__()
        self.inputs = inputs
        self.outputs = outputs
        self.run = run
        self.ended = threading.Event()

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002 - torch's
        """Until it is complete or aborted. Never raises, as a wait on a stream does not."""
        self.ended.wait()
        return True

    def is_completed(self) -> bool:
        """Complete or aborted."""
        return self.ended.is_set()

    def leave_partial(self) -> None:
        """End as an aborted kernel does: some blocks have added what had come, others not."""
        for out in self.outputs:
            half = out.detach().view(-1)[: (out.numel() + 1) // 2]
            half.add_(half)
        self.ended.set()


class NcclStandIn(dist.ProcessGroup):
    """See the module."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._at = (store, rank, size, timeout)
        self._communicator: Any = None
        self._connecting = threading.Lock()
        self._lock = threading.Lock()
        self._aborted = False
        self._streams: dict[Hashable, queue.SimpleQueue[StreamWork | None]] = {}
        self._pending: set[StreamWork] = set()

    def abort(self) -> None:
        """From any thread: every wait returns, every later call raises. Waits for no peer."""
        with self._lock:
            self._aborted = True
            for work in self._pending:
                work.leave_partial()
            self._pending.clear()
            for stream in self._streams.values():
                stream.put(None)

    def shutdown(self) -> None:
        self.abort()

    def allreduce(self, tensors: list[Tensor], _opts: Any = None) -> StreamWork:  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        return self._start("all", tensors, tensors, lambda g, _, out: g.allreduce(out, _opts))

    def broadcast(self, tensors: list[Tensor], opts: Any) -> StreamWork:  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        return self._start("all", tensors, tensors, lambda g, _, out: g.broadcast(out, opts))

    def allgather(  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        self, outputs: list[list[Tensor]], inputs: list[Tensor], _opts: Any = None
    ) -> StreamWork:
        (rows,) = outputs
        return self._start("all", inputs, rows, lambda g, x, out: g.allgather([out], x))

    def all_gather_single(self, output: Tensor, own: Tensor, _opts: Any = None) -> StreamWork:  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        return self._start(
            "all", [own], [output], lambda g, x, out: g.all_gather_single(out[0], x[0])
        )

    def reduce_scatter_single(self, output: Tensor, whole: Tensor, opts: Any) -> StreamWork:  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        return self._start(
            "all", [whole], [output], lambda g, x, out: g.reduce_scatter_single(out[0], x[0], opts)
        )

    def barrier(self, opts: Any = None) -> StreamWork:  # noqa: ARG002 - called by name  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        return self._start("all", [], [], lambda g, _x, _out: g.barrier())

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> StreamWork:  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        return self._start(("to", peer), tensors, [], lambda g, x, _: g.send(x, peer, tag))

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> StreamWork:  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        return self._start(("from", peer), [], tensors, lambda g, _, out: g.recv(out, peer, tag))

    @property
    def group_name(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        return dist.distributed_c10d._world.pg_names[self]  # pyright: ignore[reportPrivateUsage] - as torch's own Python groups do

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return NAME

    def _start(
        self,
        stream: Hashable,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        run: Operation,
    ) -> StreamWork:
        work = StreamWork(inputs=list(inputs), outputs=list(outputs), run=run)
        with self._lock:
            if self._aborted:
                raise dist.DistBackendError(
                    f"NCCL communicator was aborted on rank {self.rank()}. "
                )
            self._pending.add(work)
            if stream not in self._streams:
                self._streams[stream] = queue.SimpleQueue()
                todo = self._streams[stream]
                threading.Thread(target=self._run_stream, args=(todo,), daemon=True).start()
            self._streams[stream].put(work)
        return work

    def _run_stream(self, todo: queue.SimpleQueue[StreamWork | None]) -> None:
        while (work := todo.get()) is not None:
            inputs = [x.detach().clone() for x in work.inputs]
            outputs = [out.detach().clone() for out in work.outputs]
            try:
                work.run(self._connected(), inputs, outputs).wait()
            except RuntimeError:
                self._watch_out()
                return  # the kernel spins: only an abort ends its waits
            with self._lock, torch.no_grad():
                if self._aborted:
                    return
                for out, made in zip(work.outputs, outputs, strict=True):
                    out.detach().copy_(made)
                self._pending.discard(work)
                work.ended.set()

    def _connected(self) -> Any:
        with self._connecting:  # an abort does not wait for it
            if self._communicator is None:
                store, rank, size, timeout = self._at
                self._communicator = dist.ProcessGroupGloo(store, rank, size, timeout)
            return self._communicator

    def _watch_out(self) -> None:
        """What the watchdog's thread does about an asynchronous error."""
        with self._lock:
            if self._aborted:
                return
        if os.environ.get(ASYNC_ERROR_HANDLING, _TEARING_DOWN) != "0":
            with suppress(OSError):
                sys.stderr.write(
                    f"[Rank {self.rank()}] {REMOTE_ERROR}\n"
                    "To avoid data inconsistency, we are taking the entire process down.\n"
                )
                sys.stderr.flush()
            os.abort()


def _create(store: Store, rank: int, size: int, timeout: timedelta) -> NcclStandIn:
    return NcclStandIn(store, rank, size, timeout)


def register() -> None:
    """Make it a backend of this process, by `NAME`."""
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, devices=["cpu"])
