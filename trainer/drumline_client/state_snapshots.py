"""Keep snapshots of a program's state in the memory of its pod, written during the next steps.

Training stands still only while the tensors are copied to a host buffer; a thread digests the copy
and writes the file (`snapshot_file`), and tells the agent, which copies it to a peer on another
node. The body of a file:

    8 bytes     length of the description
    JSON        the state and the random states, without their tensors (`state_tree`)
    tensors     each at a multiple of 64 bytes from the end of the description

Imports torch, so it is imported late: the client itself needs the standard library alone.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

import torch

from drumline_client.environment import RankPlace, SnapshotPlace
from drumline_client.snapshot_file import (
    SnapshotError,
    SnapshotHeader,
    open_snapshot,
    rank_folder,
    snapshot_file,
    snapshot_steps,
    write_snapshot,
)
from drumline_client.state_tree import PackedState, copy_into, pack, unpack
from drumline_client.wire import RestoreFailed, SnapshotWritten

FORMAT: Final = "state-1"
MAX_DESCRIPTION_BYTES: Final = 1 << 28
_LENGTH_BYTES: Final = 8

logger = logging.getLogger("drumline_client")


class StateSnapshots:
    """Snapshots of one rank in one attempt. No call waits for another rank."""

    def __init__(
        self,
        place: SnapshotPlace,
        *,
        rank: RankPlace,
        deliver: Callable[[SnapshotWritten | RestoreFailed], None],
    ) -> None:
        """Take over the folder, and remove leftovers of an earlier attempt.

        Args:
            place: place of this attempt's snapshots.
            rank: rank of this process.
            deliver: sends a message to the agent. The writing thread also calls it.
        """
        self._place = place
        self._rank = rank
        self._deliver = deliver
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._writing: threading.Thread | None = None
        self._newest = -1
        self._warned = False
        # Later steps than the agreed one belong to a timeline that is abandoned.
        self._remove(after=-1 if place.restore_step is None else place.restore_step)
        for unfinished in rank_folder(place.folder, rank.rank).glob("*.part"):
            # Parts of a killed write hold memory of the pod.
            unfinished.unlink()

    def take(self, step: int, state: MutableMapping[str, Any]) -> float:
        """Copy the state of a step. Return the seconds for which training paused.

        Raises:
            TypeError: the state has a value that cannot be rebuilt. The message names its path.
            ValueError: the step is older than the newest snapshot.
        """
        # Phase 1: a second call for the same step is valid, for example after a restore.
        started = time.monotonic()
        if step == self._newest:
            return 0.0
        if step < self._newest:
            raise ValueError(f"a snapshot of step {step} after that of step {self._newest}")
        # Phase 2: describe first. A TypeError must not disturb the previous snapshot.
        packed = pack(state=state, process={"random": RandomStates()})
        self.finish()  # so that all ranks keep snapshots of the same steps
        if self._newest < 0:  # a program that went on from an older checkpoint of its own
            self._remove(after=step - 1)
        # Phase 3: copy. Training continues once the copy is in host memory.
        self._newest = step
        self._reserve(packed)
        copy_into(self._buffer, packed)
        if self._buffer.is_pinned():
            # Non-blocking copies end with the stream. The next step may change the tensors.
            torch.cuda.current_stream().synchronize()
        # The references would keep device tensors alive during the write.
        packed.tensors.clear()
        seconds = time.monotonic() - started
        # Phase 4: digest and write in a thread.
        self._writing = threading.Thread(
            target=self._write, args=(step, packed, seconds), name="drumline-snapshot", daemon=True
        )
        self._writing.start()
        return seconds

    def finish(self) -> None:
        """Wait for the file that is being written, if there is one."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def restore(self, state: MutableMapping[str, Any]) -> int | None:
        """Fill the state from this rank's snapshot of the step that all ranks have.

        Raises:
            SnapshotError: the file is damaged, or has another state. All ranks then start again,
                with an older snapshot or none.
        """
        step = self._place.restore_step
        if step is None:
            return None
        try:
            self._restore(step, state)
        # The agent must know, so that all ranks restart with an older step.
        except Exception as error:
            self._deliver(RestoreFailed(step=step, error=str(error)))
            raise
        self._newest = step
        return step

    def _remove(self, *, after: int) -> None:
        """Remove this rank's snapshots of later steps."""
        for step in snapshot_steps(self._place.folder, rank=self._rank.rank):
            if step > after:
                snapshot_file(self._place.folder, rank=self._rank.rank, step=step).unlink()

    def _restore(self, step: int, state: MutableMapping[str, Any]) -> None:
        path = snapshot_file(self._place.folder, rank=self._rank.rank, step=step)
        with open_snapshot(path) as (header, body):
            # The digest proves intact bytes. These fields prove that they belong to this rank.
            taken = (header.rank, header.step, header.world_size, header.config)
            if taken != (self._rank.rank, step, self._rank.world_size, FORMAT):
                raise SnapshotError(f"{path.name}: from another rank, step, size or program")
            size = int.from_bytes(body[:_LENGTH_BYTES], "little")
            start = _LENGTH_BYTES + size
            # The bound holds before any allocation of this size.
            if size > MAX_DESCRIPTION_BYTES or start > len(body):
                raise SnapshotError(f"{path.name}: the description is too long")
            description = json.loads(bytes(body[_LENGTH_BYTES:start]))
            with body[start:] as tensors:
                unpack(description, tensors, state=state, process={"random": RandomStates()})

    def _reserve(self, packed: PackedState) -> None:
        """Allocate a buffer of the size, and fill it so that its pages exist when needed."""
        # The buffer grows only. Steps of equal size reuse its pages.
        if self._buffer.numel() < packed.bytes:
            self._buffer = torch.empty(0, dtype=torch.uint8)  # never two at once
            pinned = any(tensor.is_cuda for tensor in packed.tensors)
            # zeros touches every page now, so that the copy does not fault pages in.
            self._buffer = torch.zeros(packed.bytes, dtype=torch.uint8, pin_memory=pinned)

    def _write(self, step: int, packed: PackedState, seconds: float) -> None:
        try:
            self._deliver(self._written(step, packed, seconds=seconds))
        except OSError as error:
            # A full folder fails at every snapshot. One warning suffices.
            if not self._warned:
                self._warned = True
                logger.warning("drumline: no snapshot of step %d: %s", step, error)

    def _written(self, step: int, packed: PackedState, *, seconds: float) -> SnapshotWritten:
        """Digest and write the copy.

        Raises:
            OSError: the memory of the pod is too small.
        """
        # Phase 1: the description, in compact JSON, since every rank keeps it in memory.
        described = json.dumps(packed.description, separators=(",", ":")).encode()
        if len(described) > MAX_DESCRIPTION_BYTES:
            raise OSError(f"its description has {len(described)} bytes")
        copied = (ctypes.c_ubyte * packed.bytes).from_address(self._buffer.data_ptr())
        body = (
            memoryview(len(described).to_bytes(_LENGTH_BYTES, "little") + described),
            memoryview(copied),  # without numpy, which torch does not require
        )
        size = sum(len(part) for part in body)
        self._place.folder.mkdir(parents=True, exist_ok=True)
        # Phase 2: check the room first. Half a file would use memory for nothing.
        free = shutil.disk_usage(self._place.folder).free
        if free < size:
            raise OSError(f"{size} bytes needed, {free} free in {self._place.folder}")
        # Phase 3: digest the copy that is written, not the live state.
        digest = hashlib.sha256()
        for part in body:
            digest.update(part)
        header = SnapshotHeader(
            rank=self._rank.rank,
            step=step,
            world_size=self._rank.world_size,
            generation=self._place.generation,
            attempt=self._place.attempt,
            config=FORMAT,
            trainer={},
            body_bytes=size,
            sha256=digest.hexdigest(),
        )
        whole = write_snapshot(self._place.folder, header, body)
        return SnapshotWritten(step=step, bytes=whole, sha256=header.sha256, seconds=seconds)


class RandomStates:
    """All random states of this process, with numpy's if the program imported it."""

    def state_dict(self) -> dict[str, Any]:
        """Return the current random states."""
        # numpy's generator exists only if the program imported numpy.
        states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            states["numpy"] = numpy.random.get_state()
        # A call for the CUDA state would initialize CUDA in a program that does not use it.
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state()
        return states

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore random states."""
        numpy: Any = sys.modules.get("numpy")
        random.setstate(states["python"])
        torch.set_rng_state(states["torch"])
        if numpy is not None and "numpy" in states:
            numpy.random.set_state(states["numpy"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(states["cuda"])
