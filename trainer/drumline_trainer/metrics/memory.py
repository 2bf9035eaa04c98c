"""The memory of this rank by category, in bytes.

Weights, gradients and optimizer state are counted from the tensors themselves, exactly, every
storage once, on any device. On a GPU the rest comes from the allocator: activations are what the
forward pass left allocated when the first backward pass began; `other` is the peak without all of
these (gathered weights, workspaces, communication buffers). On a CPU the peak is that of the
process, with the interpreter and all libraries, so no category is derived from it.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUsage:
    """Memory of a rank, in bytes by kind."""

    weights: int | None
    """None, here and below: not counted."""
    gradients: int | None
    """Counted when the optimizer step begins, before any gradient is freed."""
    optimizer: int | None
    activations: int | None = None
    other: int | None = None
    peak: int
    """Peak of the allocator since the last report. On a CPU: the largest resident size of the
    process."""
    capacity: int | None = None
    """Memory of the device."""

    def by_category(self) -> dict[str, int]:
        """Return the known categories."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def used_share(self) -> float | None:
        """Peak over capacity."""
        return None if self.capacity is None else self.peak / self.capacity


@dataclass(slots=True, kw_only=True)
class MemoryMeter:
    """Reads the memory of one device around the phases of a step."""

    device: torch.device
    _weights: int | None = None
    _optimizer: int | None = None
    _gradients: int | None = None
    _at_forward: int | None = None
    _activations: int | None = None

    def count_state(self, stages: Iterable[nn.Module], *, state: Iterable[Tensor]) -> None:
        """Count the weights with buffers, and the tensors of `state` that are not weights."""
        held = [tensor for stage in stages for tensor in (*stage.parameters(), *stage.buffers())]
        weights = {_storage(tensor) for tensor in held}
        self._weights = bytes_of(held)
        # Optimizers that hold the weights themselves must not count them twice.
        self._optimizer = bytes_of(tensor for tensor in state if _storage(tensor) not in weights)

    def enter(self, phase: str) -> None:
        """Read the allocator when this phase begins, without synchronization."""
        if self.device.type != "cuda":
            return
        # Measure the first micro-batch only: later ones start with gradients allocated.
        if phase == "forward" and self._at_forward is None:
            self._at_forward = torch.cuda.memory_allocated(self.device)
        elif phase == "backward" and self._at_forward is not None and self._activations is None:
            allocated = torch.cuda.memory_allocated(self.device)
            # Freed memory of the forward pass can exceed its activations, so clamp at 0.
            self._activations = max(0, allocated - self._at_forward)

    def count_gradients(self, gradients: Iterable[Tensor]) -> None:
        """Call this before they are freed."""
        self._gradients = bytes_of(gradients)

    def take(self) -> MemoryUsage:
        """Return the usage since the last call, and reset the peak."""
        if self.device.type != "cuda":
            return MemoryUsage(
                weights=self._weights,
                gradients=self._gradients,
                optimizer=self._optimizer,
                # Linux gives ru_maxrss in KiB.
                peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            )
        peak = torch.cuda.max_memory_allocated(self.device)
        properties = cast("Any", torch.cuda.get_device_properties(self.device))  # pyright: ignore[reportUnknownMemberType] - untyped
        capacity = int(properties.total_memory)
        # The next window has its own peak.
        torch.cuda.reset_peak_memory_stats(self.device)
        activations, self._at_forward, self._activations = self._activations, None, None
        return split(
            weights=self._weights,
            gradients=self._gradients,
            optimizer=self._optimizer,
            activations=activations,
            peak=peak,
            capacity=capacity,
        )


def split(
    *,
    weights: int | None,
    gradients: int | None,
    optimizer: int | None,
    activations: int | None,
    peak: int,
    capacity: int,
) -> MemoryUsage:
    """Split the allocator's peak by category.

    `other` is at least 0, as offloaded state is not in it.

    Args:
        weights: bytes of weights.
        gradients: bytes of gradients.
        optimizer: bytes of optimizer state.
        activations: bytes of activations.
        peak: largest allocation in bytes.
        capacity: memory of the device in bytes.
    """
    known = sum(part or 0 for part in (weights, gradients, optimizer, activations))
    return MemoryUsage(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        # Counted tensors on the host exceed the device's peak, so clamp at 0.
        other=max(0, peak - known),
        peak=peak,
        capacity=capacity,
    )


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Return the bytes that this rank holds of tensors. A shared storage counts once."""
    return sum(dict(map(_storage, tensors)).values())


def _storage(tensor: Tensor) -> tuple[int, int]:
    """Return the address and size in bytes of a tensor's storage; of a DTensor, the local part."""
    storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
    return storage.data_ptr(), storage.nbytes()
