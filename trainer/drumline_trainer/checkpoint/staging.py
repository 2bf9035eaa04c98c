"""A copy in host memory of the slices that a rank saves: training goes on once it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.tensor_files.layout import as_bytes

_ALIGNMENT = 64


class StagingBuffer:
    """Allocated once; every copy replaces the last one."""

    def __init__(self, slices: Sequence[TensorSlice]) -> None:
        """Allocate memory for these slices, whose tensors are copied at each `stage`."""
        self._sources = [local.tensor.detach() for local in slices]
        sizes = [source.numel() * source.element_size() for source in self._sources]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
        on_gpu = any(source.is_cuda for source in self._sources)
        # only to pinned memory the GPU copies directly, without a buffer of the driver
        self._buffer = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=on_gpu)
        self._targets = [
            self._buffer[start : start + size] for start, size in zip(starts, sizes, strict=False)
        ]
        self.slices = [
            replace(local, tensor=target.view(local.tensor.dtype).view(local.tensor.shape))
            for local, target in zip(slices, self._targets, strict=True)
        ]
        """The same slices, of the copy."""

    def stage(self) -> None:
        """Copy; the sources may change afterwards."""
        for source, target in zip(self._sources, self._targets, strict=True):
            target.copy_(as_bytes(source), non_blocking=True)
        if self._buffer.is_pinned():
            torch.cuda.current_stream().synchronize()
