"""Where a slice's tensor is kept while it is not on the device: the interface of an offload store.

The stores themselves (the host's memory, a file) are in `memory.offload_store`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor


class OffloadStore(Protocol):
    """Allocates tensors outside the device, of the sizes that it was opened for."""

    def empty(self, shape: Sequence[int], *, dtype: torch.dtype) -> Tensor:
        """A tensor on the host, contents undefined."""
        ...

    def release(self, tensors: Sequence[Tensor]) -> None:
        """These are not in use for now: their memory may be given back, their contents stay."""
        ...

    def prefetch(self, tensors: Sequence[Tensor]) -> None:
        """These are about to be read."""
        ...


OpenStore = Callable[[Sequence[int]], OffloadStore]
"""Opens a store for tensors of so many bytes each."""
