"""Weights that FSDP2 gathers from the host: shards in its memory, or in a file.

FSDP2 copies a unit's shard to the device before it gathers it, and the gradient's shard back; the
optimizer works on the host, in place. Of a file, the shard of the next unit is read ahead while one
is at work in the forward pass, and what a unit has used is let go of. (Shards that are padded, of a
dimension that the ranks do not divide, FSDP2 keeps in memory.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drumline_trainer.config import MemoryConfig
from drumline_trainer.memory.offload_store import Home, home


def give_storage_at_home(
    stages: Sequence[nn.Module], memory: MemoryConfig, *, device: torch.device
) -> Home:
    """Parameters of sharded stages get storage at home, buffers on the device: contents undefined.

    Raises:
        ConfigError: the folder is missing, or has too little room.
    """
    shards = [shard_of(p) for stage in stages for p in stage.parameters()]
    place = home(
        memory.offload_parameters, memory, sizes=[one.nbytes for one in shards], device=device
    )

    def give(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, DTensor):
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        local = place.empty(shard_of(tensor).shape, dtype=tensor.dtype)
        # from_local would move it to the mesh's device
        return DTensor(local, tensor._spec, requires_grad=tensor.requires_grad)  # noqa: SLF001 # pyright: ignore[reportCallIssue]

    for stage in stages:
        stage._apply(give)  # noqa: SLF001 - as Module.to_empty does
    return place


class ReadAhead:
    """Of units, in the order of their forward passes."""

    def __init__(self, units: Sequence[nn.Module], place: Home) -> None:
        """Watch the forward passes."""
        self._place = place
        for unit, following in pairwise([*units, None]):
            assert unit is not None  # noqa: S101 - None is the last
            unit.register_forward_pre_hook(lambda *_, unit=following: self._fetch(unit))
            unit.register_forward_hook(lambda module, *_: self._let_go(module))

    def _fetch(self, unit: nn.Module | None) -> None:
        if unit is not None:
            self._place.fetch_ahead(own_shards(unit))

    def _let_go(self, unit: nn.Module) -> None:
        self._place.let_go(own_shards(unit))


def own_shards(unit: Any) -> list[Tensor]:
    """What a unit of FSDP2 gathers, on this rank."""
    group = unit._get_fsdp_state()._fsdp_param_group  # noqa: SLF001 - there is no public word
    if group is None:
        return []
    return [shard_of(parameter.sharded_param) for parameter in group.fsdp_params]


def shard_of(parameter: Tensor) -> Tensor:
    """This rank's part of it."""
    return parameter._local_tensor if isinstance(parameter, DTensor) else parameter  # noqa: SLF001
