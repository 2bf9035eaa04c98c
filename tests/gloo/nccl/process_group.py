"""A process group over Gloo that fails as ProcessGroupNCCL does.

What a survivor of a lost peer meets under NCCL and never under Gloo (docs/decisions/0030):

- A call returns at once; operations run in order on a stream, each pair of peers' on another.
- The communicator is made by the first operation, which waits for it; with a `device_id` when the
  default group is made. An abort ends that with an error.
- A lost peer fails no wait. The kernel spins until the communicator is aborted, then every wait
  returns without an error, and what it leaves in the output is partial.
- Only the next call raises, with NCCL's text.
- Sends and receives of one batch are one operation (`supports_coalescing`).
- torch's flight recorder knows of every operation whether its device has come to it
  (`flight_records`); a device may hang, or lose its links (`device`).
- Who waits for a result burns a processor (`Waiting`), where the test asks for that.
- A watchdog acts on a lost peer and on an operation that takes longer than the group's timeout:
  TORCH_NCCL_ASYNC_ERROR_HANDLING is 0 to leave all as it is, 1 and 3 to end the process, 2 to abort
  the communicator.

Tensors are on the CPU, where the host cannot run ahead of the stream: so `wait` waits for the
result, as reading it would on a GPU.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Hashable, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage] - documented

from tests.gloo.nccl.device import DEVICE
from tests.gloo.nccl.errors import NcclResult, aborted
from tests.gloo.nccl.flight_records import RECORDS, Record
from tests.gloo.nccl.work import Batch, Operation, StreamWork

NAME = "nccl_standin"
ASYNC_ERROR_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
NO_TIMEOUT = timedelta(days=1)
"""Of Gloo below: the watchdog alone knows timeouts."""
LOOK_SECONDS = 0.05
ALL = "all"
"""The stream of collectives and of batches; each pair of peers has one for each direction."""


class ErrorHandling(Enum):
    """torch's `ErrorHandlingMode`."""

    NO_HANDLING = "0"
    TEAR_DOWN = "1"
    CLEAN_UP_ONLY = "2"
    SKIP_CLEAN_UP = "3"

    @classmethod
    def of_environment(cls) -> ErrorHandling:
        """By default the process ends, communicators as they are."""
        return cls(os.environ.get(ASYNC_ERROR_HANDLING, cls.SKIP_CLEAN_UP.value))


class NcclStandIn(dist.ProcessGroup):
    """See the module."""

    def __init__(
        self, store: Store, rank: int, *, ranks: Sequence[int], name: str, timeout: timedelta
    ) -> None:
        """Of `ranks` of the default group."""
        super().__init__(rank, len(ranks))
        self._at = (store, rank, len(ranks))
        self._ranks = ranks
        self._name = name
        self.timeout = timeout
        self._communicator: Any = None
        self._connecting: threading.Thread | None = None
        self._settled = threading.Event()
        """There is a communicator, or there will be none."""
        self._lock = threading.Lock()
        self._aborted = False
        self._reason = ""
        self._collectives = 0
        self._transfers = 0
        self._batch: Batch | None = None
        self._streams: dict[Hashable, queue.SimpleQueue[StreamWork | None]] = {}
        self._pending: set[StreamWork] = set()
        self._watchdog: threading.Thread | None = None

    def abort(self, reason: str = "") -> None:
        """From any thread: every wait returns, every later call raises. Waits for no peer."""
        with self._lock:
            if not self._aborted:
                self._aborted, self._reason = True, reason
            for work in self._pending:
                work.leave_partial()
            self._pending.clear()
            self._settled.set()
            for stream in self._streams.values():
                stream.put(None)

    def shutdown(self) -> None:
        self.abort()

    def allreduce(self, tensors: list[Tensor], _opts: Any = None) -> StreamWork:  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        return self._start(
            "all_reduce", ALL, tensors, tensors, lambda g, _, out: g.allreduce(out, _opts)
        )

    def broadcast(self, tensors: list[Tensor], opts: Any) -> StreamWork:  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        return self._start(
            "broadcast", ALL, tensors, tensors, lambda g, _, out: g.broadcast(out, opts)
        )

    def allgather(  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        self, outputs: list[list[Tensor]], inputs: list[Tensor], _opts: Any = None
    ) -> StreamWork:
        (rows,) = outputs
        return self._start("all_gather", ALL, inputs, rows, lambda g, x, out: g.allgather([out], x))

    def all_gather_single(self, output: Tensor, own: Tensor, _opts: Any = None) -> StreamWork:  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        return self._start(
            "_all_gather_base",
            ALL,
            [own],
            [output],
            lambda g, x, out: g.all_gather_single(out[0], x[0]),
        )

    def reduce_scatter_single(self, output: Tensor, whole: Tensor, opts: Any) -> StreamWork:  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        return self._start(
            "_reduce_scatter_base",
            ALL,
            [whole],
            [output],
            lambda g, x, out: g.reduce_scatter_single(out[0], x[0], opts),
        )

    def all_to_all_single(  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        self,
        output: Tensor,
        own: Tensor,
        receiving: list[int],
        sending: list[int],
        _opts: Any = None,
    ) -> StreamWork:
        return self._start(
            "all_to_all",
            ALL,
            [own],
            [output],
            lambda g, x, out: g.all_to_all_single(out[0], x[0], receiving, sending),
        )

    def barrier(self, opts: Any = None) -> StreamWork:  # noqa: ARG002 - called by name  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        return self._start("barrier", ALL, [], [], lambda g, _x, _out: g.barrier())

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> StreamWork | None:  # pyright: ignore[reportIncompatibleMethodOverride] - narrower, and torch's own gives none in a batch
        name = f"send {self.rank()}->{peer}"
        return self._transfer(name, peer, tensors, [], lambda g, x, _: g.send(x, peer, tag))

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> StreamWork | None:  # pyright: ignore[reportIncompatibleMethodOverride] - as `send`
        name = f"recv {self.rank()}<-{peer}"
        return self._transfer(name, peer, [], tensors, lambda g, _, out: g.recv(out, peer, tag))

    supports_coalescing = True  # pyright: ignore[reportAssignmentType, reportIncompatibleVariableOverride] - torch's is a property

    def _start_coalescing(self, device: torch.device) -> None:  # noqa: ARG002 - torch's
        """What any thread calls on this group from now on joins the batch: torch's own weakness."""
        self._refuse_aborted()
        self._transfers += 1
        self._batch = Batch()

    def _end_coalescing(self, device: torch.device) -> StreamWork:  # noqa: ARG002 - torch's
        batch, self._batch = self._batch, None
        assert batch is not None
        return self._start("coalesced", ALL, batch.inputs, batch.outputs, batch.run, transfer=True)

    @property
    def group_name(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride] - narrower
        return dist.distributed_c10d._world.pg_names[self]  # pyright: ignore[reportPrivateUsage] - as torch's own Python groups do

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return NAME

    def _get_backend(self, _device: torch.device) -> NcclStandIn:
        return self

    @property
    def supports_splitting(self) -> bool:
        """A group is made of the store, not of another group."""
        return False

    def _transfer(
        self,
        name: str,
        peer: int,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        run: Operation,
    ) -> StreamWork | None:
        if self._batch is not None:
            self._batch.add(inputs, outputs, run)
            self._record(name, transfer=True)  # its state stays: only the batch's has events
            return None
        self._transfers += 1
        direction = "to" if inputs else "from"
        return self._start(name, (direction, peer), inputs, outputs, run, transfer=True)

    def _record(self, name: str, *, transfer: bool = False) -> Record:
        record = Record(
            group=(self._name, "undefined"),
            group_id=RECORDS.know(self._name, "undefined", self._ranks),
            collective_number=self._collectives,
            transfer_number=self._transfers if transfer else 0,
            name=name,
            is_transfer=transfer,
            timeout_ms=int(self.timeout.total_seconds() * 1e3),
        )
        RECORDS.add(record)
        return record

    def _start(
        self,
        name: str,
        stream: Hashable,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        run: Operation,
        *,
        transfer: bool = False,
    ) -> StreamWork:
        DEVICE.wait_to_call()
        self._refuse_aborted()
        self.connect()
        with self._lock:
            self._refuse_aborted()
            self._collectives += not transfer
            work = StreamWork(
                name,
                inputs=list(inputs),
                outputs=list(outputs),
                run=run,
                sequence_number=self._transfers if transfer else self._collectives,
                record=self._record(name, transfer=transfer),
            )
            self._pending.add(work)
            if self._watchdog is None:
                self._watchdog = threading.Thread(target=self._watch, daemon=True)
                self._watchdog.start()
            if stream not in self._streams:
                self._streams[stream] = queue.SimpleQueue()
                todo = self._streams[stream]
                threading.Thread(target=self._run_stream, args=(todo,), daemon=True).start()
            self._streams[stream].put(work)
        return work

    def _run_stream(self, todo: queue.SimpleQueue[StreamWork | None]) -> None:
        while (work := todo.get()) is not None:
            DEVICE.wait_to_start()
            work.record.start()
            DEVICE.wait_for_links()
            inputs = [x.detach().clone() for x in work.inputs]
            outputs = [out.detach().clone() for out in work.outputs]
            try:
                work.run(self._communicator, inputs, outputs).wait()
            except RuntimeError:
                self._handle(NcclResult.REMOTE_ERROR.text())
                return  # the kernel spins: only an abort ends its waits
            with self._lock, torch.no_grad():
                if self._aborted:
                    return
                for out, made in zip(work.outputs, outputs, strict=True):
                    out.detach().copy_(made)
                self._pending.discard(work)
                work.record.complete()
                work.ended.set()

    @property
    def connected(self) -> bool:
        """Whether there is a communicator."""
        return self._communicator is not None

    def connect(self) -> None:
        """Make the communicator, unless there is one.

        Raises:
            DistBackendError: a peer is lost, or the connections of this process were closed.
        """
        with self._lock:
            if self._connecting is None:
                self._connecting = threading.Thread(target=self._connect, daemon=True)
                self._connecting.start()
        self._settled.wait()
        if self._communicator is None:
            raise dist.DistBackendError(NcclResult.SYSTEM_ERROR.text_of_call())

    def _connect(self) -> None:
        with suppress(RuntimeError):
            self._communicator = dist.ProcessGroupGloo(*self._at, NO_TIMEOUT)
        self._settled.set()

    def _refuse_aborted(self) -> None:
        if self._aborted:
            raise dist.DistBackendError(aborted(self.rank(), reason=self._reason))

    def _watch(self) -> None:
        """The watchdog's thread: it only looks at times."""
        while not self._aborted:
            time.sleep(LOOK_SECONDS)
            with self._lock:
                oldest = min(self._pending, key=lambda work: work.began_at, default=None)
            if oldest is None:
                continue
            seconds = time.monotonic() - oldest.began_at
            if seconds > self.timeout.total_seconds():
                self._handle(
                    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum="
                    f"{oldest.sequence_number}, OpType={_type_of(oldest.name)}, Timeout(ms)="
                    f"{self.timeout.total_seconds() * 1e3:.0f}) ran for {seconds * 1e3:.0f}"
                    " milliseconds before timing out."
                )
                return

    def _handle(self, reason: str) -> None:
        """What the watchdog does about an asynchronous error."""
        with self._lock:
            if self._aborted:
                return
        handling = ErrorHandling.of_environment()
        if handling is ErrorHandling.CLEAN_UP_ONLY:
            self.abort(reason)
        if handling in (ErrorHandling.TEAR_DOWN, ErrorHandling.SKIP_CLEAN_UP):
            with suppress(OSError):
                sys.stderr.write(
                    f"[Rank {self.rank()}] {reason}\n"
                    "To avoid data inconsistency, we are taking the entire process down.\n"
                )
                sys.stderr.flush()
            os.abort()


def _type_of(name: str) -> str:
    """torch's name of the type of an operation: `ALLREDUCE` of `all_reduce`."""
    return name.upper().replace("ALL_", "ALL")


def _create(options: Any, _backend_options: Any) -> NcclStandIn:
    """From torch's `_DistributedBackendOptions`."""
    made = NcclStandIn(
        options.store,
        options.group_rank,
        ranks=options.global_ranks_in_group or range(options.group_size),
        name=options.group_id,
        timeout=options.timeout,
    )
    if options.process_group.bound_device_id is not None:
        made.connect()
    return made


def register() -> None:
    """Make it a backend of this process, by `NAME`."""
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
