"""An optimizer whose state is away: it comes bucket by bucket, and goes again.

Slices are put into buckets, each with an optimizer of its own, which is the ordinary one and knows
nothing of this. Between updates what it works on has no memory on the device; its contents are in a
home (`offload.home`). In an update one bucket is worked on while the next one comes and the one
before goes:

    to the device    │ 1 │ 2 │ 3 │ 4 │
    update               │ 1 │ 2 │ 3 │ 4 │
    away from it             │ 1 │ 2 │ 3 │ 4 │

so that the device holds three of them at most. Checkpoints and snapshots are given what lies at
home. Updates are elementwise, or of one matrix: in buckets they are the same bits.
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

from drumline_trainer.assembly.optimizer import Optimizer
from drumline_trainer.memory.offload_store import Home
from drumline_trainer.memory.transfer_streams import Lane
from drumline_trainer.sharding.slices import Slice
from drumline_trainer.sharding.world import World

BUCKET_ELEMENTS = 1 << 25
"""Of weights: with AdamW's moments 256 MiB."""


class OffloadedOptimizer:
    """Of this rank's slices, in buckets."""

    def __init__(
        self,
        slices: Sequence[Slice],
        *,
        build: Callable[[Sequence[Slice]], Optimizer],
        home: Callable[[Sequence[int]], Home],
        world: World,
        bucket_elements: int | None = None,
    ) -> None:
        """Make the state, at home. Collective where `build` is.

        Args:
            slices: those that have a home are there already, and are worked on in a copy.
            build: the optimizer of some slices.
            home: for tensors of so many bytes each; asked once.
            world: its device does the work, unless slices lie elsewhere.
            bucket_elements: of weights that are updated at once, but for those that are larger;
                None: BUCKET_ELEMENTS.
        """
        limit = BUCKET_ELEMENTS if bucket_elements is None else bucket_elements
        self._device = next((s.tensor.device for s in slices if s.home is None), world.device)
        self._buckets = [
            _Bucket(slices[start:end], start, device=self._device, build=build)
            for start, end in pairwise(_borders(slices, world, limit=limit))
        ]
        made = home([size for bucket in self._buckets for size in bucket.state_sizes])
        for bucket in self._buckets:
            bucket.settle(made)

    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        """One step at this learning rate with the gradients of the slices, in their order."""
        to_device, from_device = Lane(self._device), Lane(self._device)
        try:
            self._update(gradients, rate, to_device=to_device, from_device=from_device)
        finally:
            to_device.close()
            from_device.close()

    def _update(
        self, gradients: Sequence[Tensor], rate: float, *, to_device: Lane, from_device: Lane
    ) -> None:
        arrivals = [functools.partial(bucket.come, to_device) for bucket in self._buckets]
        arrival = arrivals[0]() if arrivals else None
        leaving: Callable[[], None] | None = None
        for number, bucket in enumerate(self._buckets):
            assert arrival is not None  # noqa: S101 - the one before has asked for it
            arrival.result()
            if number + 1 < len(arrivals):
                arrival = arrivals[number + 1]()
            bucket.optimizer.update(gradients[bucket.start : bucket.end], rate=rate)
            if leaving is not None:
                leaving()
            leaving = functools.partial(bucket.gone, bucket.go(from_device))
        if leaving is not None:
            leaving()
        for bucket in self._buckets:  # reading one maps pages of its neighbours again
            bucket.let_go()

    def set_finished_steps(self, steps: int) -> None:
        """How many updates the state has seen."""
        for bucket in self._buckets:
            bucket.optimizer.set_finished_steps(steps)

    def slices(self) -> list[Slice]:
        """Weights and state, as they lie at home, by their names in a checkpoint."""
        return [one for bucket in self._buckets for one in bucket.slices]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traveller:
    """A tensor that the optimizer works on, and where its contents are when it does not."""

    working: Tensor
    """Has memory only while it is worked on."""
    at_home: Tensor
    home: Home

    def take_memory(self) -> None:
        self.working.untyped_storage().resize_(self.at_home.nbytes)

    def give_memory_back(self) -> None:
        self.working.untyped_storage().resize_(0)


class _Bucket:
    """Slices that are updated together."""

    def __init__(
        self,
        slices: Sequence[Slice],
        start: int,
        *,
        device: torch.device,
        build: Callable[[Sequence[Slice]], Optimizer],
    ) -> None:
        self.start, self.end = start, start + len(slices)
        """Of its gradients among all."""
        self._away = [s for s in slices if s.home is not None]
        copies = {
            _key(s): replace(s, tensor=torch.empty_like(s.tensor, device=device), home=None)
            for s in self._away
        }
        self.optimizer = build([copies.get(_key(s), s) for s in slices])
        self.slices = self.optimizer.slices()
        weights = {s.tensor.untyped_storage().data_ptr() for s in slices}
        weights |= {s.tensor.untyped_storage().data_ptr() for s in copies.values()}
        self._state = [
            s
            for s in self.slices
            if s.tensor.numel() and s.tensor.untyped_storage().data_ptr() not in weights
        ]
        self.state_sizes = [s.tensor.nbytes for s in self._state]
        self._travellers = [
            _Traveller(working=copies[_key(s)].tensor, at_home=s.tensor, home=s.home)
            for s in self._away
            if s.home is not None and s.tensor.numel()
        ]
        for one in self._state:
            one.tensor.untyped_storage().resize_(0)
        for one in self._travellers:
            one.give_memory_back()

    def settle(self, home: Home) -> None:
        """Make a home for the state: zeros, as every optimizer begins."""
        homes = {_key(s.like(s.tensor, prefix="model")): s for s in self._away}
        for one in self._state:
            at_home = home.empty(one.box.shape, dtype=one.tensor.dtype).zero_()
            homes[_key(one)] = replace(one, tensor=at_home, home=home)
            self._travellers.append(_Traveller(working=one.tensor, at_home=at_home, home=home))
        self.slices = [
            s if found is None else replace(s, tensor=found.tensor, home=found.home)
            for s, found in ((s, homes.get(_key(s))) for s in self.slices)
        ]
        self.let_go()

    def come(self, lane: Lane) -> Future[None]:
        """Bring contents to the device."""
        for one in self._travellers:
            one.take_memory()
        return lane.copy((one.working, one.at_home) for one in self._travellers)

    def go(self, lane: Lane) -> Future[None]:
        """Take contents home."""
        pairs = ((one.at_home, one.working) for one in self._travellers)
        return lane.copy(pairs, then=self.let_go)

    def gone(self, copied: Future[None]) -> None:
        """Once they are there, give the memory back."""
        copied.result()
        for one in self._travellers:
            one.give_memory_back()

    def let_go(self) -> None:
        """Whatever lies at home need not be in memory."""
        for home in {id(one.home): one.home for one in self._travellers}.values():
            home.let_go([one.at_home for one in self._travellers if one.home is home])


def _key(one: Slice) -> tuple[str, int]:
    """A rank may hold several copies of one parameter: an embedding at both ends of a pipeline."""
    return one.name, one.copy


def _borders(slices: Sequence[Slice], world: World, *, limit: int) -> list[int]:
    """Where buckets begin and end: the same on all ranks that hold parts of the same tensors."""
    sharing = world.layout.world_size // world.layout.pipeline
    borders, filled = [0], 0.0
    for number, one in enumerate(slices):
        size = math.prod(one.shape) * one.copies / sharing
        if filled and filled + size > limit:
            borders.append(number)
            filled = 0.0
        filled += size
    return [*borders, len(slices)]
