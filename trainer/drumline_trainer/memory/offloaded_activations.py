"""Activations that are away between a layer's forward pass and its backward pass.

What autograd keeps of a run of layers makes a group: with recompute that is the run's input,
otherwise all that its operations save.
While later layers compute, the group is copied to a buffer at home and its memory is given back;
before its backward pass, while that of the run after it computes, it comes again.

    forward       │ 1 │ 2 │ 3 │ 4 │                backward  │ 4 │ 3 │ 2 │ 1 │
    away              │ 1 │ 2 │ 3 │                to it     │ 3 │ 2 │ 1 │

The forward pass waits for the copy of the group before the last, so two groups are on their way at
most; the last ones, which are wanted before they have left, stay. Storages move whole, each once,
however many views of them were saved: every view is as it was, strides and all, and so are the
results. Weights, buffers, what all layers share and small tensors stay. Buffers are used again.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from drumline_trainer.memory.buffers import Buffers
from drumline_trainer.memory.offload_store import Home
from drumline_trainer.memory.recompute import RecomputedRuns
from drumline_trainer.memory.transfer_streams import Lane

LEAST_BYTES = 1 << 20
"""Smaller storages are not worth a copy."""
_ON_THEIR_WAY = 2
"""Groups that are leaving, at most."""


class OffloadedRuns(nn.Module):
    """`models.seams.Through`, whose runs' activations go away once passed."""

    def __init__(
        self,
        through: nn.Module,
        *,
        home: Callable[[Sequence[int]], Home],
        device: torch.device,
        least_bytes: int | None = None,
    ) -> None:
        """Wrap the way through the layers, after `recompute` has replaced it.

        Args:
            through: the model's.
            home: for buffers of these sizes.
            device: of the activations.
            least_bytes: smaller ones stay; None: LEAST_BYTES.
        """
        super().__init__()
        self.through = through
        self._length = through.length if isinstance(through, RecomputedRuns) else 1
        self._spare = Buffers(home)
        self._device = device
        self._least_bytes = LEAST_BYTES if least_bytes is None else least_bytes
        self._lanes: tuple[Lane, Lane] | None = None

    def forward(self, layers: Iterable[nn.Module], x_BSD: Tensor, *rest: Any) -> Tensor:
        """The last layer's output."""
        if not torch.is_grad_enabled():
            return cast("Tensor", self.through(layers, x_BSD, *rest))
        lanes = self._lanes = self._lanes or (Lane(self._device), Lane(self._device))
        leaving: deque[_Group] = deque()
        group: _Group | None = None
        remaining = iter(layers)
        shared = {_place(tensor) for tensor in _tensors(rest)}
        while run := tuple(itertools.islice(remaining, self._length)):
            group = _Group(
                lanes=lanes,
                before=group,
                stays=_Stays(layers=run, shared=shared, least_bytes=self._least_bytes),
            )
            with saved_tensors_hooks(group.pack, group.unpack):
                x_BSD = cast("Tensor", self.through(run, x_BSD, *rest))
            if len(leaving) == _ON_THEIR_WAY:
                leaving.popleft().has_left()
            group.leave(self._spare)
            leaving.append(group)
        return x_BSD


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stays:
    """What is not moved."""

    layers: tuple[nn.Module, ...]
    shared: set[int]
    """Storages that all layers are given."""
    least_bytes: int

    def __call__(self, tensor: Tensor) -> bool:
        if type(tensor) is not Tensor or tensor.untyped_storage().nbytes() < self.least_bytes:
            return True
        place = _place(tensor)
        # looked at every time: FSDP2 gathers weights that were not there when the layer began
        held = (t for one in self.layers for t in (*one.parameters(), *one.buffers()))
        return place in self.shared or any(place == _place(weight) for weight in held)


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """What was saved: a view of a storage of the group."""

    storage: int
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]


class _Group:
    """The storages that autograd keeps of one run. Lives as long as any of their views."""

    def __init__(self, *, lanes: tuple[Lane, Lane], before: _Group | None, stays: _Stays) -> None:
        self._from_device, self._to_device = lanes
        self._before = before
        self._stays: _Stays | None = stays
        self._numbers: dict[int, int] = {}
        self._storages: list[torch.UntypedStorage | None] = []
        self._parts: list[Tensor] = []
        self._home: Home | None = None
        self._left: Future[None] | None = None
        self._arrived: Future[None] | None = None
        self._device = torch.device("cpu")
        self._wanted = False
        self._lock = threading.Lock()

    def pack(self, tensor: Tensor) -> Tensor | _View:
        """Called by autograd with what it would save."""
        if self._stays is None or self._stays(tensor):
            return tensor
        storage = tensor.untyped_storage()
        number = self._numbers.setdefault(storage.data_ptr(), len(self._storages))
        if number == len(self._storages):
            self._storages.append(storage)
            self._device = tensor.device
        return _View(
            storage=number,
            dtype=tensor.dtype,
            offset=int(tensor.storage_offset()),
            size=tensor.shape,
            stride=tensor.stride(),
        )

    def unpack(self, saved: Tensor | _View) -> Tensor:
        """Called by autograd when it needs it."""
        if isinstance(saved, Tensor):
            return saved
        self.come()
        if self._before is not None:
            self._before.come()
        if self._arrived is not None:
            self._arrived.result()
        storage = self._storages[saved.storage]
        assert storage is not None  # noqa: S101 - it has come
        empty = torch.empty(0, dtype=saved.dtype, device=self._device)
        return empty.set_(storage, saved.offset, saved.size, saved.stride)

    def leave(self, buffers: Buffers) -> None:
        """The forward pass of the run is over."""
        self._stays = None
        self._numbers.clear()
        sources = [_as_bytes(one, self._device) for one in self._storages if one is not None]
        if not sources:
            return
        sizes = [source.numel() for source in sources]
        size = sum(sizes)
        buffer = buffers.take(size)
        self._home, self._parts = buffer.home, list(buffer.bytes[:size].split(sizes))
        weakref.finalize(self, buffers.give, buffer, size)
        pairs = zip(self._parts, sources, strict=True)
        self._left = self._from_device.copy(pairs, then=self._forget)

    def has_left(self) -> None:
        """Wait until the memory is given back, or is wanted again."""
        if self._left is not None:
            self._left.result()
            self._left = None

    def come(self) -> None:
        """Begin to bring it back, unless that has begun or nothing has left."""
        with self._lock:
            wanted, self._wanted = self._wanted, True
            here = all(one is not None for one in self._storages)
        if wanted or here:
            return
        pairs: list[tuple[Tensor, Tensor]] = []
        for number, part in enumerate(self._parts):
            target = torch.empty_like(part, device=self._device)
            self._storages[number] = target.untyped_storage()
            pairs.append((target, part))
        self._arrived = self._to_device.copy(pairs, then=self._let_go)

    def _forget(self) -> None:
        """In the lane's thread, once everything is at home."""
        with self._lock:
            if not self._wanted:
                self._storages = [None] * len(self._storages)
        self._let_go()

    def _let_go(self) -> None:
        if self._home is not None:
            self._home.let_go(self._parts)


def _as_bytes(storage: torch.UntypedStorage, device: torch.device) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _place(tensor: Tensor) -> int:
    """Address of its storage; of a DTensor, of the local part."""
    return getattr(tensor, "_local_tensor", tensor).untyped_storage().data_ptr()


def _tensors(values: Any) -> Iterator[Tensor]:
    """In tuples of tuples."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple):
        for one in cast("tuple[Any, ...]", values):
            yield from _tensors(one)
