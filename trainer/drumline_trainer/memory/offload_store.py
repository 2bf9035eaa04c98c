"""Offload stores: tensors in the host's memory, or in a file without a name.

A file has its whole size from the start, so a disk that is too small is reported before the first
step. It has no name: nothing is left of it when its process ends, however that ends. Its tensors
are mapped memory, read and written like any other, so checkpoints and snapshots need not know. What
was read or written is released afterwards, and the host keeps only what is being worked on.
"""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from drumline_contract.config import ConfigError, MemoryConfig, Offload
from drumline_trainer.sharding.storage import OffloadStore

_ALIGNED = 64
"""Alignment of tensors in bytes."""


def open_store(
    kind: Offload, memory: MemoryConfig, *, sizes: Iterable[int], device: torch.device
) -> OffloadStore:
    """Open a store for tensors of these sizes in bytes, used by a device.

    Args:
        kind: host memory or a folder.
        memory: offload settings.
        sizes: bytes of each tensor.
        device: device that uses the tensors.

    Raises:
        ConfigError: the folder is missing, or has too little space.
    """
    if kind is Offload.NVME:
        assert memory.offload_folder is not None  # noqa: S101 - MemoryConfig asks for it
        return FileStore(Path(memory.offload_folder), sizes=sizes)
    return HostMemoryStore(pinned=device.type == "cuda")


class HostMemoryStore:
    """The host's memory; pinned for a GPU, whose copies then run beside its work."""

    def __init__(self, *, pinned: bool) -> None:
        self._pinned = pinned

    def empty(self, shape: Sequence[int], *, dtype: torch.dtype) -> Tensor:
        """Return a separately allocated tensor of this shape."""
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=self._pinned)

    def release(self, tensors: Sequence[Tensor]) -> None:
        """Do nothing: the tensors stay in memory."""

    def prefetch(self, tensors: Sequence[Tensor]) -> None:
        """Do nothing: the tensors are in memory."""


class FileStore:
    """Mapped memory in a folder."""

    def __init__(self, folder: Path, *, sizes: Iterable[int]) -> None:
        """Take that much room on the disk now.

        Raises:
            ConfigError: the folder is missing, or has too little room.
        """
        # The total is known before the start, so a full disk is not found in the middle of a run.
        needed = sum(_rounded(size, _ALIGNED) for size in sizes)
        # mmap rejects a length of 0, hence at least one page.
        self._size = max(mmap.PAGESIZE, _rounded(needed, mmap.PAGESIZE))
        self._end = 0
        try:
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                # posix_fallocate reserves blocks. A sparse file would fail later with SIGBUS.
                os.posix_fallocate(file.fileno(), 0, self._size)
                self._map = mmap.mmap(file.fileno(), self._size)
                # The descriptor outlives the context for fadvise. The unnamed file lives as long as
                # it.
                self._descriptor = os.dup(file.fileno())
        except OSError as error:
            raise ConfigError(_no_room(folder, self._size, error)) from error
        weakref.finalize(self, os.close, self._descriptor)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def empty(self, shape: Sequence[int], *, dtype: torch.dtype) -> Tensor:
        """Return a tensor of this shape in the next bytes of the file."""
        size = prod(shape) * dtype.itemsize
        # Bump allocation: tensors of a store live as long as the store.
        start, self._end = self._end, self._end + _rounded(size, _ALIGNED)
        return self._bytes[start : start + size].view(dtype).view(tuple(shape))

    def release(self, tensors: Sequence[Tensor]) -> None:
        """Give their memory back; the kernel begins to write to the disk what was changed."""
        start, length = self._pages(tensors)
        if length:
            # DONTNEED on a shared mapping drops pages from the process but not from the file.
            self._map.madvise(mmap.MADV_DONTNEED, start, length)
            # fadvise drops clean pages from the page cache and starts to write dirty ones.
            os.posix_fadvise(self._descriptor, start, length, os.POSIX_FADV_DONTNEED)

    def prefetch(self, tensors: Sequence[Tensor]) -> None:
        """Let the kernel begin to read the tensors."""
        start, length = self._pages(tensors)
        if length:
            self._map.madvise(mmap.MADV_WILLNEED, start, length)

    def _pages(self, tensors: Sequence[Tensor]) -> tuple[int, int]:
        """Return first byte and length of the run of pages that these tensors fill."""
        base = self._bytes.data_ptr()
        held = [tensor for tensor in tensors if tensor.numel() and self._holds(tensor)]
        if not held:
            return 0, 0
        start = min(tensor.data_ptr() for tensor in held) - base
        end = max(tensor.data_ptr() + tensor.nbytes for tensor in held) - base
        start -= start % mmap.PAGESIZE
        return start, _rounded(end, mmap.PAGESIZE) - start

    def _holds(self, tensor: Tensor) -> bool:
        return 0 <= tensor.data_ptr() - self._bytes.data_ptr() < self._size


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _no_room(folder: Path, size: int, error: OSError) -> str:
    needed = f"memory.offload_folder: {folder} must hold {size:,} bytes for this rank"
    if not folder.is_dir():
        return f"{needed}, and is not a folder"
    free = shutil.disk_usage(folder).free
    return f"{needed}, but has {free:,} bytes free ({error.strerror})"
