"""An optimizer whose state is offloaded: it is fetched and written back bucket by bucket.

Slices are put into buckets, each with an ordinary optimizer of its own. Between updates their state
has no memory on the device; its contents are in an offload store. In an update, one bucket computes
while the next one is fetched and the one before is written back. With four buckets:

    fetch            │ 1 │ 2 │ 3 │ 4 │
    update               │ 1 │ 2 │ 3 │ 4 │
    write back               │ 1 │ 2 │ 3 │ 4 │

so that the device holds at most three of them (ZeRO-Offload, Ren et al. 2021; ZeRO-Infinity,
Rajbhandari et al. 2021). Checkpoints and snapshots read what is in the store. Updates are
elementwise, or of one matrix: in buckets they are the same bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from drumline_trainer.memory.transfer_streams import TransferStream
from drumline_trainer.optimization.optimizer import Optimizer
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.storage import OffloadStore, OpenStore
from drumline_trainer.sharding.world import World

BUCKET_ELEMENTS = 1 << 25
"""Maximum number of weights per bucket. With AdamW's moments it has 256 MiB."""


class OffloadedOptimizer:
    """Updates this rank's slices, in buckets."""

    def __init__(
        self,
        slices: Sequence[TensorSlice],
        *,
        build: Callable[[Sequence[TensorSlice]], Optimizer],
        open_store: OpenStore,
        world: World,
        bucket_elements: int | None = None,
    ) -> None:
        """Make the state, in the store. Collective if `build` is.

        Args:
            slices: those with a store are offloaded already, and are updated in a copy.
            build: makes the optimizer of some slices.
            open_store: opens a store for tensors of given sizes in bytes. Called once.
            world: its device computes, unless slices are on another one.
            bucket_elements: weights that are updated together, but for larger slices; None:
                BUCKET_ELEMENTS.
        """
        limit = BUCKET_ELEMENTS if bucket_elements is None else bucket_elements
        self._device = next((s.tensor.device for s in slices if s.store is None), world.device)
        # Phase 1: the buckets' borders must agree on all ranks, because `build` can be collective.
        self._buckets = [
            _Bucket(slices[start:end], start, device=self._device, build=build)
            for start, end in pairwise(_borders(slices, world, limit=limit))
        ]
        # Phase 2: one store for all buckets, so that the size of its file is known at once.
        made = open_store([size for bucket in self._buckets for size in bucket.state_sizes])
        for bucket in self._buckets:
            bucket.move_state_to(made)

    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        """Do one step at this learning rate; gradients have the slices' order and shapes."""
        # Threads and streams exist during the update only, so a waiting run holds none.
        to_device, from_device = TransferStream(self._device), TransferStream(self._device)
        try:
            self._update(gradients, rate, to_device=to_device, from_device=from_device)
        finally:
            to_device.close()
            from_device.close()

    def _update(
        self,
        gradients: Sequence[Tensor],
        rate: float,
        *,
        to_device: TransferStream,
        from_device: TransferStream,
    ) -> None:
        # The first fetch has nothing to overlap with.
        fetched = self._buckets[0].fetch(to_device) if self._buckets else None
        finish_write: Callable[[], None] | None = None
        for number, bucket in enumerate(self._buckets):
            # fetch: wait for this bucket, then start the next
            assert fetched is not None  # noqa: S101 - started by the bucket before
            fetched.result()
            if number + 1 < len(self._buckets):
                fetched = self._buckets[number + 1].fetch(to_device)
            # update
            bucket.optimizer.update(gradients[bucket.start : bucket.end], rate=rate)
            # write back: wait for the bucket before, then start this one
            if finish_write is not None:
                finish_write()
            finish_write = functools.partial(bucket.free, after=bucket.write_back(from_device))
        if finish_write is not None:
            finish_write()
        for bucket in self._buckets:  # reading a bucket maps pages of its neighbours again
            bucket.release()

    def set_finished_steps(self, steps: int) -> None:
        """Set the number of updates that the state has seen."""
        for bucket in self._buckets:
            bucket.optimizer.set_finished_steps(steps)

    def slices(self) -> list[TensorSlice]:
        """Return weights and state, as they are in the store, by their names in a checkpoint."""
        return [part for bucket in self._buckets for part in bucket.slices]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OffloadedTensor:
    """A tensor that the optimizer updates, and where its contents are between updates."""

    working: Tensor
    """Has memory only during the update."""
    stored: Tensor
    store: OffloadStore

    def allocate(self) -> None:
        self.working.untyped_storage().resize_(self.stored.nbytes)

    def free(self) -> None:
        self.working.untyped_storage().resize_(0)


class _Bucket:
    """Slices that are updated together."""

    def __init__(
        self,
        slices: Sequence[TensorSlice],
        start: int,
        *,
        device: torch.device,
        build: Callable[[Sequence[TensorSlice]], Optimizer],
    ) -> None:
        self.start, self.end = start, start + len(slices)
        """Range of the bucket's gradients among all."""
        # Phase 1: weights that are offloaded themselves get a working copy on the device.
        self._away = [s for s in slices if s.store is not None]
        copies = {
            _key(s): replace(s, tensor=torch.empty_like(s.tensor, device=device), store=None)
            for s in self._away
        }
        # Phase 2: the inner optimizer sees plain tensors and does not know of the offloading.
        self.optimizer = build([copies.get(_key(s), s) for s in slices])
        self.slices = self.optimizer.slices()
        weights = {s.tensor.untyped_storage().data_ptr() for s in slices}
        weights |= {s.tensor.untyped_storage().data_ptr() for s in copies.values()}
        # Phase 3: state is every storage that is not a weight. Scalars such as step counts are not
        # slices.
        self._state = [
            s
            for s in self.slices
            if s.tensor.numel() and s.tensor.untyped_storage().data_ptr() not in weights
        ]
        self.state_sizes = [s.tensor.nbytes for s in self._state]
        self._tensors = [
            _OffloadedTensor(working=copies[_key(s)].tensor, stored=s.tensor, store=s.store)
            for s in self._away
            if s.store is not None and s.tensor.numel()
        ]
        # Phase 4: free the memory now. The state of all buckets at once may not fit on the device.
        for part in self._state:
            part.tensor.untyped_storage().resize_(0)
        for tensor in self._tensors:
            tensor.free()

    def move_state_to(self, store: OffloadStore) -> None:
        """Allocate the state in a store: zeros, as every optimizer begins."""
        # Weights that are in a store already keep their place there.
        stored = {_key(s.like(s.tensor, prefix="model")): s for s in self._away}
        for part in self._state:
            tensor = store.empty(part.box.shape, dtype=part.tensor.dtype).zero_()
            stored[_key(part)] = replace(part, tensor=tensor, store=store)
            self._tensors.append(_OffloadedTensor(working=part.tensor, stored=tensor, store=store))
        # Checkpoints read the stored tensors, so the slices must refer to them.
        self.slices = [
            s if kept is None else replace(s, tensor=kept.tensor, store=kept.store)
            for s, kept in ((s, stored.get(_key(s))) for s in self.slices)
        ]
        self.release()

    def fetch(self, stream: TransferStream) -> Future[None]:
        """Copy the contents to the device."""
        # Allocate before the copy is queued. The stream's thread only copies.
        for tensor in self._tensors:
            tensor.allocate()
        return stream.copy((tensor.working, tensor.stored) for tensor in self._tensors)

    def write_back(self, stream: TransferStream) -> Future[None]:
        """Copy the contents to the store."""
        pairs = ((tensor.stored, tensor.working) for tensor in self._tensors)
        # The file's pages are released once the device's contents are in them.
        return stream.copy(pairs, then=self.release)

    def free(self, *, after: Future[None]) -> None:
        """Free the device memory once the contents are in the store."""
        after.result()
        for tensor in self._tensors:
            tensor.free()

    def release(self) -> None:
        """Release the host memory of tensors in a store."""
        # A store releases runs of pages, so one call for each store covers all its tensors.
        for store in {id(tensor.store): tensor.store for tensor in self._tensors}.values():
            store.release([tensor.stored for tensor in self._tensors if tensor.store is store])


def _key(part: TensorSlice) -> tuple[str, int]:
    """Return a key. The copy distinguishes an embedding's two ends of a pipeline on one rank."""
    return part.name, part.copy


def _borders(slices: Sequence[TensorSlice], world: World, *, limit: int) -> list[int]:
    """Return the borders of buckets, equal on all ranks that hold parts of the same tensors."""
    # Ranks of one stage share tensors, so borders depend on sizes that they all compute alike.
    sharing = world.layout.world_size // world.layout.pipeline
    borders, filled = [0], 0.0
    for number, part in enumerate(slices):
        size = math.prod(part.shape) * part.copies / sharing
        # A slice above the limit gets a bucket of its own.
        if filled and filled + size > limit:
            borders.append(number)
            filled = 0.0
        filled += size
    return [*borders, len(slices)]
