"""The box of a global tensor that this rank holds, if PyTorch's wrapper (FSDP2) has cut it.

DTensor's `Shard` placements cut a dimension into ceil(n / parts) pieces, the last ones shorter or
empty. Importing them takes half a second, so only modules for FSDP2 import this one.
"""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from drumline_trainer.sharding.boxes import Box


def local_shard(tensor: Tensor) -> Tensor:
    """Return this rank's own part of a sharded tensor. It shares the storage and may be empty."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_box(tensor: Tensor) -> Box:
    """Return the part of a tensor that this rank holds; all of it if it is not sharded.

    Raises:
        ValueError: a placement is neither Shard nor Replicate (strided or partial).
    """
    offsets, shape = [0] * tensor.dim(), list(tensor.shape)
    if isinstance(tensor, DTensor):
        coordinate = tensor.device_mesh.get_coordinate()
        if coordinate is None:
            raise ValueError("this rank is no part of the tensor's mesh")
        for axis, placement in enumerate(tensor.placements):
            if type(placement) is Replicate:
                continue
            if type(placement) is not Shard:
                raise ValueError(f"cannot tell the interval of placement {placement}")
            dim: int = placement.dim  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - untyped in torch
            parts = tensor.device_mesh.size(axis)
            piece = -(-shape[dim] // parts)
            start = min(coordinate[axis] * piece, shape[dim])
            shape[dim] = min(piece, shape[dim] - start)
            offsets[dim] += start
    return Box(offsets=tuple(offsets), shape=tuple(shape))
