"""A copy in host memory of what a rank saves: training may go on once it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from drumline_trainer.checkpoint.shard_file import as_bytes
from drumline_trainer.sharding.slices import Slice

_ALIGNMENT = 64


class StagingBuffer:
    """The buffer is made once; every copy replaces the one before."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        """Make room for these parts, whose tensors are read again and again."""
        self._sources = [part.tensor.detach() for part in slices]
        sizes = [source.numel() * source.element_size() for source in self._sources]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
        on_gpu = any(source.is_cuda for source in self._sources)
        # pinned: only so the GPU copies on its own, without the driver's detour
        self._buffer = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=on_gpu)
        self._targets = [
            self._buffer[start : start + size] for start, size in zip(starts, sizes, strict=False)
        ]
        self.parts = [
            replace(part, tensor=target.view(part.tensor.dtype).view(part.tensor.shape))
            for part, target in zip(slices, self._targets, strict=True)
        ]
        """The same parts, of the copy."""

    def stage(self) -> None:
        """Copy. The sources may change afterwards."""
        for source, target in zip(self._sources, self._targets, strict=True):
            target.copy_(as_bytes(source), non_blocking=True)
        if self._buffer.is_pinned():
            torch.cuda.current_stream().synchronize()
