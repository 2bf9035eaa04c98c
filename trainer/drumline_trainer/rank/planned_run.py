"""The layout of a membership: as configured, or chosen for these devices and this many ranks.

It is computed anew for every membership, so a gang of another size gets a layout of its own. Every
rank computes it separately, from the same configuration and devices of one kind. `preflight` fails
with both layouts if two ranks disagree.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import StepPart
from drumline_contract.config import DataParallel, Family, TrainerConfig
from drumline_contract.hardware import GpuCluster
from drumline_contract.layout import Layout
from drumline_contract.layout_validation import validated_layout
from drumline_planner.auto import choose, is_auto
from drumline_planner.machine import PROCESSOR, SeenDevice, machine
from drumline_planner.memory_check import check_memory
from drumline_planner.setup import TrainingSetup
from drumline_planner.step_time import step_time

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """Configuration and layout of a membership."""

    config: TrainerConfig
    """With its layout written out."""
    layout: Layout
    summary: str
    """The layout in one line. A chosen layout also has its predicted cost."""
    seconds: float | None
    """Predicted seconds of a step. None: the device is unknown."""
    parts: dict[StepPart, float] | None = None
    """Predicted seconds of each part of a step."""
    reasons: tuple[str, ...] = ()
    """Reasons for a chosen layout. For a configured one: a warning if it may not fit in memory."""


def planned_run(config: TrainerConfig, *, placement: Placement, device: torch.device) -> PlannedRun:
    """Return the layout that this membership's ranks agree on without a message.

    Args:
        config: configuration of the run.
        placement: rank and pod of this process.
        device: device of the rank.

    Raises:
        ConfigError: no layout can train this on that number of ranks.
    """
    return _planned(
        config,
        ranks=placement.world_size,
        ranks_per_node=placement.local_world_size,
        seen=seen_device(device),
    )


def seen_device(device: torch.device) -> SeenDevice:
    """Return the device as its driver describes it."""
    if device.type != "cuda":
        # The processor's figures are a constant, so ranks of different hosts plan alike.
        return SeenDevice(name="", memory_bytes=PROCESSOR.memory_bytes)
    _, memory = torch.cuda.mem_get_info(device)
    return SeenDevice(name=torch.cuda.get_device_name(device), memory_bytes=memory)


@functools.lru_cache(maxsize=16)
def _planned(
    config: TrainerConfig, *, ranks: int, ranks_per_node: int, seen: SeenDevice
) -> PlannedRun:
    """Plan a run, and keep the plan, as a rank that stays joins gangs of a few sizes repeatedly."""
    # Everything below follows from arguments that are equal on all ranks, so no message is needed.
    cluster = machine(config.hardware, gpus=ranks, gpus_per_node=ranks_per_node, seen=seen)
    # Phase 1: a layout that is to be chosen.
    if is_auto(config):
        chosen = choose(config, cluster=cluster)
        return PlannedRun(
            config=chosen.config,
            layout=chosen.layout,
            summary=chosen.summary,
            # A predicted time on processors would be a guess.
            seconds=None if cluster.gpu is PROCESSOR else chosen.seconds,
            parts=None if cluster.gpu is PROCESSOR else chosen.parts,
            reasons=chosen.reasons,
        )
    # Phase 2: a layout from the configuration, checked for this number of ranks.
    layout = validated_layout(config, world_size=ranks)
    time = None
    # Shapes of a transformers module are not known here, so nothing is predicted.
    known = config.model.family is not Family.TRANSFORMERS
    # Steps of parameter servers and of independent workers do not end together, so no single time
    # fits.
    waits = known and config.parallelism.data_parallel is not DataParallel.PARAMETER_SERVER
    if waits and not config.parallelism.independent and cluster.gpu is not PROCESSOR:
        time = step_time(TrainingSetup.of(config, layout), cluster)
    return PlannedRun(
        config=config,
        layout=layout,
        summary=str(layout),
        seconds=None if time is None else time.seconds,
        parts=None if time is None else time.by_part,
        reasons=() if cluster.gpu is PROCESSOR else tuple(_shortage(config, cluster)),
    )


def _shortage(config: TrainerConfig, cluster: GpuCluster) -> Iterator[str]:
    """Yield the memory warning that is otherwise shown before a job waits for its GPUs.

    It is needed here if the model was not known then.
    """
    check = check_memory(config, cluster=cluster)
    if check is None or check.fits:
        return
    change = "no small change helps"
    if check.change is not None:
        fields = [f"{name}={value}" for name, value in check.change.fields]
        if check.change.ranks != cluster.gpus:
            fields.append(f"{check.change.ranks} ranks")
        change = f"{' with '.join(fields)} needs {check.change.needed_bytes / _GIB:.1f}"
    yield (
        f"memory: a rank needs {check.needed_bytes / _GIB:.1f} GiB of the"
        f" {check.capacity_bytes / _GIB:.1f} GiB of an {cluster.gpu.name}, by the planner's bill,"
        f" and may run out of it; {change}"
    )
