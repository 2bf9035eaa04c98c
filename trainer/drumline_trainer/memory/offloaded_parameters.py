"""Weights that FSDP2 gathers from the host: shards in its memory, or in a file.

FSDP2 copies a unit's shard to the device before it gathers it, and the gradient's shard back; the
optimizer works on the host, in place. From a file, the shard of the next unit is prefetched while a
unit computes its forward pass, and released once used. (FSDP2 keeps shards in memory that it pads:
those of a dimension that does not divide by the ranks.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from drumline_contract.config import MemoryConfig
from drumline_trainer.memory.offload_store import open_store
from drumline_trainer.sharding.storage import OffloadStore


def allocate_in_store(
    stages: Sequence[nn.Module], memory: MemoryConfig, *, device: torch.device
) -> OffloadStore:
    """Allocate the parameters of sharded stages in a store, buffers on the device.

    Contents are undefined.

    Args:
        stages: sharded stages on the meta device.
        memory: offload settings.
        device: device of the buffers.

    Raises:
        ConfigError: the folder is missing, or has too little room.
    """
    shards = [local_part(p) for stage in stages for p in stage.parameters()]
    store = open_store(
        memory.offload_parameters, memory, sizes=[shard.nbytes for shard in shards], device=device
    )

    def allocate(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, DTensor):
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        local = store.empty(local_part(tensor).shape, dtype=tensor.dtype)
        # DTensor.from_local would move it to the mesh's device
        return DTensor(local, tensor._spec, requires_grad=tensor.requires_grad)  # noqa: SLF001 - see above # pyright: ignore[reportCallIssue, reportPrivateUsage] - __new__ is torch's own

    for stage in stages:
        stage._apply(allocate)  # noqa: SLF001 - as Module.to_empty does # pyright: ignore[reportPrivateUsage, reportUnknownMemberType] - untyped in torch
    return store


class Prefetcher:
    """Prefetches the shards of units in the order of their forward passes."""

    def __init__(self, units: Sequence[nn.Module], store: OffloadStore) -> None:
        """Install hooks around the forward passes."""
        self._store = store
        for unit, following in pairwise(units):
            unit.register_forward_pre_hook(lambda *_, unit=following: self._prefetch(unit))  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType] - torch's hook takes any arguments
        for unit in units:
            unit.register_forward_hook(lambda module, *_: self._release(module))  # pyright: ignore[reportUnknownArgumentType, reportUnknownLambdaType] - torch's hook takes any arguments

    def _prefetch(self, unit: nn.Module) -> None:
        self._store.prefetch(own_shards(unit))

    def _release(self, unit: nn.Module) -> None:
        self._store.release(own_shards(unit))


def own_shards(unit: Any) -> list[Tensor]:
    """Return this rank's shards of the weights that a unit of FSDP2 gathers."""
    group = unit._get_fsdp_state()._fsdp_param_group  # noqa: SLF001 - there is no public way
    if group is None:
        return []
    return [local_part(parameter.sharded_param) for parameter in group.fsdp_params]


def local_part(parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter."""
    if not isinstance(parameter, DTensor):
        return parameter
    return parameter._local_tensor  # noqa: SLF001 - to_local would record it # pyright: ignore[reportPrivateUsage] - see above
