"""Interface of an offload store, which keeps a slice's tensor outside of the device.

The stores (host memory, a file) are in `memory.offload_store`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor


class OffloadStore(Protocol):
    """Allocates tensors outside the device, of the sizes that it was opened for."""

    def empty(self, shape: Sequence[int], *, dtype: torch.dtype) -> Tensor:
        """Return a tensor of this shape on the host. Its contents are undefined."""
        ...

    def release(self, tensors: Sequence[Tensor]) -> None:
        """Mark tensors as unused for now. Their memory may be reused, their contents stay."""
        ...

    def prefetch(self, tensors: Sequence[Tensor]) -> None:
        """Prepare to read these tensors."""
        ...


OpenStore = Callable[[Sequence[int]], OffloadStore]
"""Opens a store for tensors of these numbers of bytes."""
