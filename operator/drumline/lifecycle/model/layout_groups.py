"""Which neighbours of a gang want one NVLink domain, and which one rack: slices for the scheduler.

Ranks are counted with the tensor axis fastest and the pipeline slowest
(`drumline_contract.layout`), so the pods of every group of an axis are neighbours, and groups nest:

    tensor < tensor x context < copy (its shards) < stage (all copies of its layers) < gang

The inner groups send most and want a domain. A stage and a copy sum gradients and gather weights in
every step, and want a rack; between stages only hidden states travel, so the pipeline is what
crosses racks (Narayanan et al. 2021, section 3). What does not fit in a rack is cut into its
largest equal shares that do. All are preferred: without them the job is slower, and waiting costs
more.

Example: 16 pods of 8 GPUs, pipeline 4, tensor 16, domains of 16 and racks of 64 GPUs. A tensor is
2 pods, a stage is 4: every 4 in one rack, every 2 in one domain.
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
    """What the layout wants, broadest first; every size is made of whole ones.

    Args:
        spec: of the job.
        hardware: of its pools; None: they do not say what they have, and nothing is asked for.
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
    """So many neighbours belong in one domain: 1 where a pod is enough, or no pool says.

    The ranks that share a tensor, and a sequence where both fit; where the ranks choose their
    layout, as many as a domain has.
    """
    if hardware.domain is None:
        return 1
    domain, gpus, whole = hardware.domain.gpus, spec.gpus_per_node, math.gcd(*sizes)
    if degrees.mode == "Auto":
        return _largest(whole, most=domain // gpus)
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
    """So many neighbours belong in one rack: 1 where the whole gang is one group, or no pool says.

    A gang of one group is kept together by packing alone.
    """
    if hardware.rack is None:
        return 1
    most = min(hardware.rack.gpus // spec.gpus_per_node, spec.nodes - 1)
    if any(size % degrees.pipeline for size in sizes):
        return 1
    stage = math.gcd(*sizes) // degrees.pipeline
    if degrees.mode == "Auto":
        return _largest(stage, most=most, multiple_of=inner)
    if degrees.pipeline == 1 and degrees.replicate == 1:
        return 1
    copy, rest = divmod(stage, degrees.replicate)
    return _largest(stage, most=most, multiple_of=inner, beside=1 if rest else copy)


def _largest(pods: int, *, most: int, multiple_of: int = 1, beside: int = 1) -> int:
    """The largest equal share of `pods` within a limit; 1: there is none.

    Args:
        pods: are shared.
        most: of a share.
        multiple_of: so many stay together.
        beside: a share is made of whole groups of so many, or such a group of whole shares.
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
