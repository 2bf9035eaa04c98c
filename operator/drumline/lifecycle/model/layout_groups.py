"""Slices for the scheduler: neighbours of a gang that need one NVLink domain or one rack.

Ranks are counted with the tensor axis fastest and the pipeline slowest
(`drumline_contract.layout`). So the pods of every group of an axis are neighbours, and groups nest:

    tensor < tensor x context < copy (its shards) < stage (all copies of its layers) < gang

The inner groups send most and need a domain. A stage and a copy sum gradients and gather weights in
every step, and need a rack. Between stages only hidden states travel, so the pipeline is the axis
that crosses racks (Narayanan et al. 2021, section 3). A group that does not fit in a rack is
divided into the largest equal shares that do. All slices are preferred, not required: without them
the job is slower, but waiting costs more.

Example: 16 pods of 8 GPUs, pipeline 4, tensor 16, domains of 16 and racks of 64 GPUs. A tensor
group is 2 pods and a stage is 4 pods: every 4 in one rack, every 2 in one domain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from drumline.lifecycle.model.hardware import PoolHardware
from drumline_api.parallelism import ParallelismSpec
from drumline_api.trainingjob import TrainingJobSpec
from drumline_contract.layout_validation import divisors
from drumline_scheduler.model import Slice


def layout_slices(
    spec: TrainingJobSpec, hardware: PoolHardware | None, *, sizes: Sequence[int]
) -> tuple[Slice, ...]:
    """Return the slices that the layout needs, broadest first. They divide every size.

    Args:
        spec: spec of the job.
        hardware: hardware of its pools. None if it is not declared: no slice is requested.
        sizes: numbers of pods that the gang may have.
    """
    if hardware is None or spec.trainer is None or spec.trainer.parallelism is None:
        return ()
    degrees = spec.trainer.parallelism
    domain = _domain_pods(spec, degrees, hardware, sizes=sizes)
    rack = _rack_pods(spec, degrees, hardware, sizes=sizes, inner=domain)
    slices: list[Slice] = []
    if hardware.rack is not None and rack > domain:
        slices.append(Slice(level=hardware.rack.level, pods=rack, required=False))
    if hardware.domain is not None and domain > 1:
        slices.append(Slice(level=hardware.domain.level, pods=domain, required=False))
    return tuple(slices)


def _domain_pods(
    spec: TrainingJobSpec,
    degrees: ParallelismSpec,
    hardware: PoolHardware,
    *,
    sizes: Sequence[int],
) -> int:
    """Return the number of neighbours that belong in one domain.

    They are the ranks that share a tensor, and a sequence if both fit. If the ranks choose their
    layout, it is as many as a domain has. 1 if a pod is enough or no pool declares domains.
    """
    if hardware.domain is None:
        return 1
    domain, gpus, whole = hardware.domain.gpus, spec.gpus_per_node, math.gcd(*sizes)
    if degrees.mode == "Auto":
        return _largest(whole, most=domain // gpus)
    # The larger group first: tensor and context together, if a domain has enough GPUs.
    for group in (degrees.tensor * degrees.context, degrees.tensor):
        pods, rest = divmod(group, gpus)
        if pods > 1 and not rest and group <= domain and whole % pods == 0:
            return pods
    return 1


def _rack_pods(
    spec: TrainingJobSpec,
    degrees: ParallelismSpec,
    hardware: PoolHardware,
    *,
    sizes: Sequence[int],
    inner: int,
) -> int:
    """Return the number of neighbours that belong in one rack.

    1 if the whole gang is one group, which packing keeps together, or if no pool declares racks.
    """
    if hardware.rack is None:
        return 1
    # At most one pod less than the gang: a slice of the whole gang says nothing.
    most = min(hardware.rack.gpus // spec.gpus_per_node, spec.nodes - 1)
    if any(size % degrees.pipeline for size in sizes):
        return 1
    # A stage, or a copy of its layers, is what communicates in every step.
    stage = math.gcd(*sizes) // degrees.pipeline
    if degrees.mode == "Auto":
        return _largest(stage, most=most, multiple_of=inner)
    if degrees.pipeline == 1 and degrees.replicate == 1:
        return 1
    copy, rest = divmod(stage, degrees.replicate)
    return _largest(stage, most=most, multiple_of=inner, beside=1 if rest else copy)


def _largest(pods: int, *, most: int, multiple_of: int = 1, beside: int = 1) -> int:
    """Return the largest equal share of `pods` within a limit, or 1.

    Args:
        pods: number of pods to divide.
        most: limit of a share.
        multiple_of: number of pods that stay together.
        beside: a share consists of whole groups of this size, or such a group of whole shares.
    """
    return max(
        (
            share
            for share in divisors(pods)
            if share <= most
            and share % multiple_of == 0
            and (share % beside == 0 or beside % share == 0)
        ),
        default=1,
    )
