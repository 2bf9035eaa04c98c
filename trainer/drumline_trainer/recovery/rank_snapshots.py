"""Snapshots of this rank's shards in the memory of its pod, taken between steps.

Training stands still only while the shards are copied to a host buffer; a thread digests the copy
and writes the file (`drumline_client.snapshot_file`) while the next steps run. The interval follows
from the cost (`snapshot_interval`); all ranks adopt the same, so their files are of the same
steps.

A snapshot fits only the rank, the number of ranks and the configuration it was taken with.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from drumline_agent.rank_protocol.messages import SnapshotTaken
from drumline_agent.rank_protocol.orders import Replicated
from drumline_agent.rank_protocol.placement import Placement
from drumline_client.snapshot_file import (
    SnapshotError,
    SnapshotHeader,
    open_snapshot,
    rank_folder,
    read_header,
    snapshot_file,
    snapshot_steps,
    write_snapshot,
)
from drumline_contract.config import TrainerConfig
from drumline_trainer.checkpoint.background_save import run_in_thread
from drumline_trainer.sharding.byte_collectives import Accepted, Rejected, Vote
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.tensor_files.layout import as_bytes, file_header


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Cost of one snapshot file."""

    step: int = -1
    training_seconds: float = 0.0
    """Taken from training: standing still, and the writer's processor time where both share one."""
    seconds: float = 0.0
    """From the copy to the complete file."""


class RankSnapshots:
    """The snapshots of one rank in one membership. No call waits for another rank."""

    def __init__(
        self,
        slices: Sequence[TensorSlice],
        *,
        config: TrainerConfig,
        placement: Placement,
        device: torch.device,
        tell: Callable[[SnapshotTaken], None],
    ) -> None:
        """Make the buffer for these slices.

        Args:
            slices: slices of weights and moments. They are read and filled in place.
            config: configuration of the run.
            placement: placement with a snapshot folder.
            device: device of the slices.
            tell: called from the writing thread when a file is complete.
        """
        self._shards = {
            f"{part.name} {part.copy}": part.tensor.detach() for part in slices if part.box.elements
        }
        self._head = file_header(self._shards)
        self._placement = placement
        self._config = _digest(config)
        self._tell = tell
        self._shares_cores = device.type == "cpu"
        self._writing: Future[_Written] | None = None
        self.written = _Written()
        """Cost of the newest finished file."""
        size = sum(as_bytes(shard).numel() for shard in self._shards.values())
        # filled, so that its pages exist before the first step is measured
        self._buffer = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")

    @property
    def folder(self) -> Path:
        """Folder of all snapshots in this pod."""
        assert self._placement.snapshot_folder is not None  # noqa: S101 - see __init__
        return self._placement.snapshot_folder

    def take(
        self, step: int, *, trainer: Mapping[str, Any], check: Callable[[], None] = lambda: None
    ) -> float:
        """Copy the shards, and write them behind the next steps.

        Args:
            step: finished steps.
            trainer: the trainer's own state.
            check: raises once the membership has ended, called when the copies are complete: an
                abort leaves what collectives have not finished in the shards, without an error.

        Returns:
            Seconds it stood still.
        """
        started = time.monotonic()
        # One buffer: the file before must be complete before it is overwritten.
        self.finish()
        offset = 0
        for shard in self._shards.values():
            flat = as_bytes(shard)
            self._buffer[offset : offset + flat.numel()].copy_(flat, non_blocking=True)
            offset += flat.numel()
        if self._buffer.is_pinned():
            torch.cuda.current_stream().synchronize()
        # A membership that has ended must not publish a snapshot.
        check()
        seconds = time.monotonic() - started
        self._writing = run_in_thread(
            lambda: self._write(step, trainer=trainer, seconds=seconds), name="snapshot"
        )
        return seconds

    def finish(self) -> None:
        """Wait for the file that is being written, if any. Raises OSError if it could not be."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            self.written = writing.result()

    def costs(self, standstill: float, *, replicated: Replicated | None) -> tuple[float, float]:
        """Return the training time that a snapshot costs, and the time until a peer has its copy.

        Args:
            standstill: seconds that training stood still for the newest snapshot.
            replicated: the newest copy that has reached a peer.
        """
        cost = max(standstill, self.written.training_seconds)
        if replicated is None:
            return cost, self.written.seconds
        # On CPUs the agents send and receive copies with processor time that training lacks.
        agent = replicated.processor_seconds if self._shares_cores else 0.0
        return cost + agent, self.written.seconds + replicated.seconds

    def restore(self, step: int, *, agree: Callable[[Vote], Vote]) -> SnapshotHeader | Rejected:
        """Fill the tensors from this rank's file of the step, if all ranks accept their files.

        Args:
            step: finished steps.
            agree: takes this rank's vote, gives the vote of all ranks.

        Returns:
            The file's header, or why no rank has used a byte of its file.
        """
        path = snapshot_file(self.folder, rank=self._placement.rank, step=step)
        with ExitStack() as stack:
            try:
                header, body = stack.enter_context(open_snapshot(path))
                self._check_kind(header, body, path, step=step)
            except SnapshotError as error:
                own = Rejected(f"rank {self._placement.rank}: {error}")
                vote = agree(own)
                return vote if isinstance(vote, Rejected) else own
            # All files are readable: only now may any rank change its tensors.
            vote = agree(Accepted())
            if isinstance(vote, Rejected):
                return vote
            self._fill(body[len(self._head) :])
            return header

    def remove_unusable(self, *, after: int) -> None:
        """Remove this rank's snapshots of later steps, gang sizes or configurations."""
        rank = self._placement.rank
        for step in snapshot_steps(self.folder, rank=rank):
            path = snapshot_file(self.folder, rank=rank, step=step)
            try:
                header = read_header(path)
                fits = (header.world_size, header.config) == self._kind
            except SnapshotError:
                fits = False
            # Later snapshots belong to a history that this restore abandons.
            if step > after or not fits:
                path.unlink(missing_ok=True)
        for abandoned in rank_folder(self.folder, rank).glob("*.part"):
            abandoned.unlink()

    @property
    def _kind(self) -> tuple[int, str]:
        """World size and configuration that a usable snapshot must share with this membership."""
        return (self._placement.world_size, self._config)

    def _check_kind(
        self, header: SnapshotHeader, body: memoryview, path: Path, *, step: int
    ) -> None:
        fits = (header.world_size, header.config) == self._kind
        if not fits or (header.rank, header.step) != (self._placement.rank, step):
            raise SnapshotError(
                f"{path.name}: taken by another rank, at another step, or in another gang size or"
                " configuration"
            )
        if bytes(body[: len(self._head)]) != self._head:
            raise SnapshotError(f"{path.name}: holds other shards")

    def _fill(self, body: memoryview) -> None:
        offset = 0
        with torch.no_grad():
            for shard in self._shards.values():
                stored = torch.frombuffer(
                    body, dtype=shard.dtype, count=shard.numel(), offset=offset
                )
                shard.copy_(stored.view(shard.shape))
                offset += stored.nbytes

    def _write(self, step: int, *, trainer: Mapping[str, Any], seconds: float) -> _Written:
        # 1. Digest the copy, beside the next steps.
        started, busy = time.monotonic(), time.thread_time()
        body = (memoryview(self._head), self._buffer.numpy().data)
        digest = hashlib.sha256()
        for part in body:
            digest.update(part)
        # 2. Write the file under the placement that it was taken in.
        place = self._placement
        header = SnapshotHeader(
            rank=place.rank,
            step=step,
            world_size=place.world_size,
            generation=place.generation,
            attempt=place.attempt,
            config=self._config,
            trainer=trainer,
            body_bytes=sum(len(part) for part in body),
            sha256=digest.hexdigest(),
        )
        size = write_snapshot(self.folder, header, body)
        # 3. Report it. The agent sends a copy to another node.
        self._tell(
            SnapshotTaken(
                step=step,
                generation=place.generation,
                attempt=place.attempt,
                bytes=size,
                sha256=header.sha256,
                seconds=seconds,
            )
        )
        # On CPUs the thread takes time from training, which the interval must count.
        taken = time.thread_time() - busy if self._shares_cores else 0.0
        return _Written(
            step=step, training_seconds=seconds + taken, seconds=time.monotonic() - started
        )


def _digest(config: TrainerConfig) -> str:
    return hashlib.sha256(json.dumps(config.to_dict(), sort_keys=True).encode()).hexdigest()
