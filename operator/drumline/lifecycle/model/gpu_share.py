"""What of a GPU a job's resource is, where it is a part of one."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.api.gpupool import GpuPoolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShare:
    """A part of a GPU, such as 3 of 7."""

    parts: int
    parts_per_gpu: int


def share_in(pool: GpuPoolSpec | None, *, resource: str | None) -> GpuShare | None:
    """What one of a resource is of a GPU of the pool; None: a whole one, as far as is known.

    Args:
        pool: None: it is not known.
        resource: `gpuPartition` of a job; None: it asks for whole GPUs.
    """
    if pool is None or pool.partitions is None:
        return None
    parts = {each.resource: each.parts for each in pool.partitions.resources}.get(resource or "")
    if parts is None:
        return None
    return GpuShare(parts=parts, parts_per_gpu=pool.partitions.parts_per_gpu)
