"""Which layers each stage has in this membership, and in the next one: by cost, or as measured.

With `parallelism.stage_balance: measured` every stage's time is taken. Whenever the run is saved,
all ranks put their times together and work out (`stages.repartition`) how the layers would be
shared out if the run started now. Both partitions are saved with the run's state: the present one,
and the next one, which is another one only if the slowest stage gets faster by a twentieth.

A run that goes on from a checkpoint begins with the next partition: a restart, a resize, another
job. One that goes on from snapshots in memory keeps the present one, as they hold the shards of
just these stages. So a partition never moves while steps are made, and the same copy always goes on
in the same way.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_client.snapshot_file import SnapshotError, read_header, snapshot_file
from drumline_contract.config import StageBalance, TrainerConfig
from drumline_contract.shapes.partition import (
    Partition,
    StageCosts,
    model_costs,
    partition,
    repartition,
)
from drumline_trainer.checkpoint.checkpointer import open_storage
from drumline_trainer.checkpoint.errors import CheckpointError
from drumline_trainer.checkpoint.manifest import Manifest
from drumline_trainer.checkpoint.ownership import Owner
from drumline_trainer.checkpoint.restore import read_manifest
from drumline_trainer.metrics.cuda_clock import CudaClock
from drumline_trainer.metrics.step_timer import StepTimer
from drumline_trainer.sharding.byte_collectives import broadcast_bytes
from drumline_trainer.sharding.world import World

KEY = "stages"
"""In the trainer's state."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class StagePlan:
    """Of one membership."""

    partition: Partition
    costs: StageCosts
    device: torch.device
    clock: StepTimer | None = None
    """Takes the seconds of this rank's stages by their number; None: nobody asks."""
    _seconds: dict[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def of(cls, config: TrainerConfig, world: World, *, placement: Placement) -> StagePlan:
        """By cost, or as the copy says that the run goes on from. Collective where measured."""
        costs = model_costs(config.model, sequence_length=config.tokens_per_sample)
        stages = world.layout.stages
        by_cost = partition(costs, stages=stages)
        if stages == 1 or config.parallelism.stage_balance is StageBalance.COST:
            return cls(partition=by_cost, costs=costs, device=world.device)
        ends = b""
        if dist.get_rank() == 0:
            ends = json.dumps(saved_boundaries(placement)).encode()
        ends = json.loads(broadcast_bytes(ends, device=world.device))
        measured = partition_of(ends, stages=stages, layers=config.model.layers)
        if measured is not None and measured != by_cost:
            logger.info("layers of the stages, as measured: %s", list(map(list, measured)))
        return cls(
            partition=measured or by_cost,
            costs=costs,
            device=world.device,
            clock=StepTimer(CudaClock()) if world.device.type == "cuda" else StepTimer(),
        )

    def state(self) -> dict[str, Any]:
        """What is saved with the trainer's state. Collective where stages are measured."""
        if self.clock is None:
            return {}
        for name, seconds in self.clock.take().items():
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        numbers = range(len(self.partition))
        own = [self._seconds.get(str(stage), 0.0) for stage in numbers]
        seconds = torch.tensor(own, dtype=torch.float64, device=self.device)
        dist.all_reduce(seconds)
        seconds_of_stages: list[float] = seconds.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - torch says only list
        following = next_partition(self.partition, self.costs, seconds=seconds_of_stages)
        return {KEY: {"now": _ends(self.partition), "next": _ends(following)}}


def next_partition(current: Partition, costs: StageCosts, *, seconds: Sequence[float]) -> Partition:
    """What to begin with after these measurements; the current one where something is missing."""
    return repartition(current, costs, seconds=seconds) if min(seconds) > 0 else current


def saved_boundaries(placement: Placement) -> list[int]:
    """Where the stages end, by the copy that this rank would go on from; empty: it does not say."""
    step, folder = placement.restore_snapshot, placement.snapshot_folder
    if step is not None and folder is not None:
        try:
            header = read_header(snapshot_file(folder, rank=placement.rank, step=step))
        except SnapshotError:
            pass  # whoever restores it says so, and takes the checkpoint
        else:
            return _recorded(header.trainer, "now")
    return _of_checkpoints(placement) if placement.has_checkpoints else []


def partition_of(ends: Sequence[int], *, stages: int, layers: int) -> Partition | None:
    """The partition with stages that end there; None where it is none of this model's."""
    starts = [0, *ends]
    rises = all(start < stop for start, stop in pairwise(starts))
    if len(ends) != stages or not rises or starts[-1] != layers:
        return None
    return tuple(range(*bounds) for bounds in pairwise(starts))


def _of_checkpoints(placement: Placement) -> list[int]:
    """By the newest checkpoint whose manifest is whole."""
    owner = Owner(name=placement.owner, membership=placement.membership)
    storage = open_storage(placement, owner=owner)
    try:
        steps = storage.steps()
    except (CheckpointError, OSError):  # the run's first membership makes it
        return []
    for step in steps:
        try:
            manifest = Manifest.parse(read_manifest(storage.committed(step), step=step))
        except CheckpointError:
            continue
        return _recorded(manifest.trainer, "next")
    return []


def _recorded(trainer: Mapping[str, Any], which: str) -> list[int]:
    match trainer.get(KEY):
        case {"now": [*_], "next": [*_]} as ends:
            return [int(end) for end in ends[which]]
        case _:
            return []


def _ends(stages: Partition) -> list[int]:
    return [own.stop for own in stages]
