"""Offload activations to a store between a layer's forward and backward pass.

The tensors that autograd saves for a run of consecutive layers make a group. With recompute, that
is the run's input, otherwise all tensors that its operations save. While later layers compute, the
group is copied to a buffer in the store, and its device memory is freed. The group is fetched again
before its backward pass, while the run after it computes its own. With four runs:

    forward       │ 1 │ 2 │ 3 │ 4 │                backward  │ 4 │ 3 │ 2 │ 1 │
    offload           │ 1 │ 2 │ 3 │                fetch     │ 3 │ 2 │ 1 │

The forward pass waits for the copy of the group before the last, so at most two groups are being
copied. The last groups stay, because backward needs them before they are offloaded. A storage moves
once, for all saved views of it. Each view gets its strides back, and results have the same bits.
Weights, buffers, tensors that all layers share, and small tensors stay on the device.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from drumline_trainer.memory.buffers import Buffers
from drumline_trainer.memory.recompute import RecomputedLayers
from drumline_trainer.memory.transfer_streams import TransferStream
from drumline_trainer.sharding.storage import OffloadStore, OpenStore

LEAST_BYTES = 1 << 20
"""Smaller storages are not worth a copy."""
_IN_FLIGHT = 2
"""Groups that are being offloaded, at most."""


class OffloadedLayers(nn.Module):
    """`models.replaceable.LayerLoop` that offloads the activations of each run of layers."""

    def __init__(
        self,
        layer_loop: nn.Module,
        *,
        open_store: OpenStore,
        device: torch.device,
        least_bytes: int | None = None,
    ) -> None:
        """Wrap a layer loop, after `recompute` has replaced it.

        Args:
            layer_loop: layer loop of the model.
            open_store: opens a store for buffers of given sizes in bytes.
            device: device of the activations.
            least_bytes: smaller storages are not offloaded. None: LEAST_BYTES.
        """
        super().__init__()
        self.layer_loop = layer_loop
        self._length = layer_loop.length if isinstance(layer_loop, RecomputedLayers) else 1
        self._spare = Buffers(open_store)
        self._device = device
        self._least_bytes = LEAST_BYTES if least_bytes is None else least_bytes
        self._streams: tuple[TransferStream, TransferStream] | None = None

    def forward(self, layers: Iterable[nn.Module], x_BSD: Tensor, *rest: Any) -> Tensor:
        """Return the last layer's output [B, S, D].

        Args:
            layers: layers to pass, in order.
            x_BSD: hidden states [batch, sequence, hidden].
            *rest: arguments of every layer.
        """
        # Without gradients autograd saves nothing, so there is nothing to offload.
        if not torch.is_grad_enabled():
            return cast("Tensor", self.layer_loop(layers, x_BSD, *rest))
        # Phase 1: streams are made once and reused by every step. One for each direction.
        streams = self._streams = self._streams or (
            TransferStream(self._device),
            TransferStream(self._device),
        )
        # Phase 2: run by run, with at most two groups in flight (see the module).
        offloading: deque[_Group] = deque()
        group: _Group | None = None
        remaining = iter(layers)
        # Tensors that all layers share would be copied once for each run.
        shared = {_address(tensor) for tensor in _tensors(rest)}
        while run := tuple(itertools.islice(remaining, self._length)):
            group = _Group(
                streams=streams,
                before=group,
                stays=_Stays(layers=run, shared=shared, least_bytes=self._least_bytes),
            )
            with saved_tensors_hooks(group.pack, group.unpack):
                x_BSD = cast("Tensor", self.layer_loop(run, x_BSD, *rest))
            # The wait comes after the run's kernels are queued, so the copy overlaps with them.
            if len(offloading) == _IN_FLIGHT:
                offloading.popleft().wait_offloaded()
            group.offload(self._spare)
            offloading.append(group)
        return x_BSD


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stays:
    """Predicate for tensors that stay on the device."""

    layers: tuple[nn.Module, ...]
    shared: set[int]
    """Storages that all layers are given."""
    least_bytes: int

    def __call__(self, tensor: Tensor) -> bool:
        # Subclasses such as DTensor carry state that a plain view cannot restore.
        if type(tensor) is not Tensor or tensor.untyped_storage().nbytes() < self.least_bytes:
            return True
        address = _address(tensor)
        # looked up every time: FSDP2 gathers weights that were not there when the layer began
        held = (t for layer in self.layers for t in (*layer.parameters(), *layer.buffers()))
        return address in self.shared or any(address == _address(weight) for weight in held)


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """A saved tensor as a view of a storage of the group."""

    storage: int
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]


class _Group:
    """The storages that autograd keeps of one run. Lives as long as any of their views."""

    def __init__(
        self,
        *,
        streams: tuple[TransferStream, TransferStream],
        before: _Group | None,
        stays: _Stays,
    ) -> None:
        self._from_device, self._to_device = streams
        self._before = before
        self._stays: _Stays | None = stays
        self._numbers: dict[int, int] = {}
        self._storages: list[torch.UntypedStorage | None] = []
        self._parts: list[Tensor] = []
        self._store: OffloadStore | None = None
        self._offloaded: Future[None] | None = None
        self._fetched: Future[None] | None = None
        self._device = torch.device("cpu")
        self._wanted = False
        self._lock = threading.Lock()

    def pack(self, tensor: Tensor) -> Tensor | _View:
        """Replace a tensor that autograd would save by a view of an offloaded storage."""
        if self._stays is None or self._stays(tensor):
            return tensor
        storage = tensor.untyped_storage()
        # setdefault gives a new storage the next number. A known storage keeps its own.
        number = self._numbers.setdefault(storage.data_ptr(), len(self._storages))
        if number == len(self._storages):
            self._storages.append(storage)
            self._device = tensor.device
        return _View(
            storage=number,
            dtype=tensor.dtype,
            offset=int(tensor.storage_offset()),
            size=tensor.shape,
            # Strides are kept exactly: kernels choose algorithms by layout, and results must be the
            # same bits.
            stride=tensor.stride(),
        )

    def unpack(self, saved: Tensor | _View) -> Tensor:
        """Return the saved tensor when autograd needs it."""
        if isinstance(saved, Tensor):
            return saved
        # Fetch this group, then the group before it, which backward needs next.
        self.fetch()
        if self._before is not None:
            self._before.fetch()
        if self._fetched is not None:
            self._fetched.result()
        storage = self._storages[saved.storage]
        assert storage is not None  # noqa: S101 - it has been fetched
        empty = torch.empty(0, dtype=saved.dtype, device=self._device)
        return empty.set_(storage, saved.offset, saved.size, saved.stride)

    def offload(self, buffers: Buffers) -> None:
        """Begin to copy to the store. Call it after the forward pass of the group's layers."""
        # Drop the references to the layers. Addresses can be reused once the group is offloaded.
        self._stays = None
        self._numbers.clear()
        sources = [
            _as_bytes(storage, self._device) for storage in self._storages if storage is not None
        ]
        if not sources:
            return
        sizes = [source.numel() for source in sources]
        size = sum(sizes)
        buffer = buffers.take(size)
        self._store, self._parts = buffer.store, list(buffer.bytes[:size].split(sizes))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType] - untyped in torch
        # The buffer returns to the pool when autograd has dropped the last view.
        weakref.finalize(self, buffers.give, buffer, size)
        pairs = zip(self._parts, sources, strict=True)
        # Memory is freed in the stream's thread, so that the forward pass does not wait.
        self._offloaded = self._from_device.copy(pairs, then=self._free_device_memory)

    def wait_offloaded(self) -> None:
        """Wait until the device memory is freed, or is wanted again."""
        if self._offloaded is not None:
            self._offloaded.result()
            self._offloaded = None

    def fetch(self) -> None:
        """Begin to copy back to the device, unless that has begun or nothing was offloaded."""
        # With the lock, `_free_device_memory` keeps the group if backward requests it first.
        with self._lock:
            wanted, self._wanted = self._wanted, True
            on_device = all(storage is not None for storage in self._storages)
        if wanted or on_device:
            return
        pairs: list[tuple[Tensor, Tensor]] = []
        for number, part in enumerate(self._parts):
            target = torch.empty_like(part, device=self._device)
            # The target is visible before its contents. `unpack` waits for the copy.
            self._storages[number] = target.untyped_storage()
            pairs.append((target, part))
        self._fetched = self._to_device.copy(pairs, then=self._release)

    def _free_device_memory(self) -> None:
        """Free device memory once everything is in the store; runs in the stream's thread."""
        # Keep the device memory if backward has already requested the group.
        with self._lock:
            if not self._wanted:
                self._storages = [None] * len(self._storages)
        # The file's pages go in either case, since the kernel writes them to the disk.
        self._release()

    def _release(self) -> None:
        if self._store is not None:
            self._store.release(self._parts)


def _as_bytes(storage: torch.UntypedStorage, device: torch.device) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage; of a DTensor, of the local part."""
    return getattr(tensor, "_local_tensor", tensor).untyped_storage().data_ptr()


def _tensors(values: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple):
        for value in cast("tuple[Any, ...]", values):  # isinstance tells no more
            yield from _tensors(value)
