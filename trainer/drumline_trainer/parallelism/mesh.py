"""The named device mesh: every rank of the job, on axes named by what they do."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

DATA_SHARD_AXIS = "dp_shard"
"""Ranks that see different samples and hold different shards of every weight."""


def device_of_rank(local_rank: int) -> torch.device:
    """The GPU of this rank in its pod, or the CPU where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device("cpu")


def build_mesh(*, device: torch.device, world_size: int) -> DeviceMesh:
    """One axis over all ranks of the initialized process group."""
    return init_device_mesh(device.type, (world_size,), mesh_dim_names=(DATA_SHARD_AXIS,))
