"""Bytes that autograd keeps at once, counted storage by storage on any device.

A default hook of `torch.autograd.graph.saved_tensors_hooks`: it sees the tensors that a forward
pass saves until the backward pass has used them, over all micro-batches in flight. It does not see
tensors that PyTorch keeps beside autograd (selective recompute), nor those that inner hooks take
(offload).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


class _Saved:
    """One tensor as autograd holds it; its end is the end of its use."""

    __slots__ = ("__weakref__", "counter", "tensor")

    def __init__(self, counter: KeptActivations, tensor: Tensor) -> None:
        self.counter, self.tensor = counter, tensor

    def __del__(self) -> None:
        self.counter.drop(self.tensor)


@dataclass(slots=True)
class KeptActivations:
    """Counts while it is watched; weights, which are saved too, are not activations."""

    most_bytes: int = 0
    """At once, so far."""
    _uses: Counter[int] = field(default_factory=Counter[int])
    """Number of uses by address of a storage, which is alive as long as it is used."""
    _alive_bytes: int = 0
    # autograd's threads drop what the main thread saved, also while it saves
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @contextmanager
    def watched(self) -> Generator[None]:
        """Count what is saved within."""
        with saved_tensors_hooks(self._pack, _unpack):
            yield

    def drop(self, tensor: Tensor) -> None:
        """Forget a tensor that autograd has used for the last time."""
        address = tensor.untyped_storage().data_ptr()
        with self._lock:
            self._uses[address] -= 1
            if not self._uses[address]:
                del self._uses[address]
                self._alive_bytes -= tensor.untyped_storage().nbytes()

    def _pack(self, tensor: Tensor) -> Tensor | _Saved:
        if type(tensor) is not Tensor or _is_weight(tensor):
            return tensor
        address = tensor.untyped_storage().data_ptr()
        with self._lock:
            if not self._uses[address]:
                self._alive_bytes += tensor.untyped_storage().nbytes()
                self.most_bytes = max(self.most_bytes, self._alive_bytes)
            self._uses[address] += 1
        return _Saved(self, tensor)


def _unpack(saved: Tensor | _Saved) -> Tensor:
    return saved.tensor if isinstance(saved, _Saved) else saved


def _is_weight(tensor: Tensor) -> bool:
    """Return whether it is a parameter, whole or a view of one."""
    base = tensor if tensor._base is None else tensor._base  # noqa: SLF001 - torch has no other word
    return isinstance(base, nn.Parameter)
