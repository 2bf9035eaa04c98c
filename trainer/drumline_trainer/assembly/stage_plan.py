"""The layers of each stage in this membership and in the next one: by cost, or as measured.

With `parallelism.stage_balance: measured` every stage is timed. Whenever the run is saved, all
ranks combine their times and compute (`stages.repartition`) the partition with which the run would
start now. Both partitions are saved with the run's state: the present one and the next one. The
next one differs only if the slowest stage gets faster by a twentieth.

A run that resumes from a checkpoint begins with the next partition, after a restart, a resize or in
another job. One that resumes from snapshots in memory keeps the present partition, because they
hold the shards of these stages. So a partition never changes during training, and one saved copy
always resumes in the same way.
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
    """The partition of one membership."""

    partition: Partition
    costs: StageCosts
    device: torch.device
    clock: StepTimer | None = None
    """Measures the seconds of this rank's stages by their number. None: times are not needed."""
    _seconds: dict[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def of(cls, config: TrainerConfig, world: World, *, placement: Placement) -> StagePlan:
        """Choose a partition by cost, or as saved in the copy that the run resumes from.

        Collective if stages are measured.

        Args:
            config: configuration of the run.
            world: process groups of this rank.
            placement: rank and pod of this process.
        """
        # Phase 1: the partition by cost is the default and the fallback.
        costs = model_costs(config.model, sequence_length=config.tokens_per_sample)
        stages = world.layout.stages
        by_cost = partition(costs, stages=stages)
        if stages == 1 or config.parallelism.stage_balance is StageBalance.COST:
            return cls(partition=by_cost, costs=costs, device=world.device)
        # Phase 2: rank 0 reads the saved boundaries for all. Two ranks could otherwise see
        # different checkpoints.
        ends = b""
        if dist.get_rank() == 0:
            ends = json.dumps(saved_boundaries(placement)).encode()
        # Collective: every rank takes part with measured stages, also if nothing is saved.
        ends = json.loads(broadcast_bytes(ends, device=world.device))
        # A partition of another model or another number of stages is ignored.
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
        """Return the part of the saved trainer state. Collective if stages are measured."""
        if self.clock is None:
            return {}
        # `take` empties the clock. Seconds are added up, because every save calls this.
        for name, seconds in self.clock.take().items():
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        numbers = range(len(self.partition))
        # A stage that another rank has counts as 0 here, so the sum over all ranks has every stage.
        own = [self._seconds.get(str(stage), 0.0) for stage in numbers]
        # fp64: seconds of a long run keep their milliseconds.
        seconds = torch.tensor(own, dtype=torch.float64, device=self.device)
        dist.all_reduce(seconds)
        seconds_of_stages: list[float] = seconds.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - torch says only list
        following = next_partition(self.partition, self.costs, seconds=seconds_of_stages)
        # "next" for a resume from a checkpoint, "now" for snapshots, which hold shards of these
        # stages.
        return {KEY: {"now": _ends(self.partition), "next": _ends(following)}}


def next_partition(current: Partition, costs: StageCosts, *, seconds: Sequence[float]) -> Partition:
    """Return the partition to begin with after these measurements.

    Without all of them: `current`.

    Args:
        current: layers of each stage.
        costs: costs of layers, embedding and head.
        seconds: measured seconds of each stage.
    """
    # A stage without a measurement would look infinitely fast.
    return repartition(current, costs, seconds=seconds) if min(seconds) > 0 else current


def saved_boundaries(placement: Placement) -> list[int]:
    """Return the ends of the stages in the copy that this rank would restore.

    Empty: none are saved.
    """
    # Snapshots go before checkpoints, as in the restore itself.
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
    """Return the partition with these ends of stages. None: they do not fit the model.

    Args:
        ends: number of layers up to the end of each stage.
        stages: number of stages.
        layers: number of layers.
    """
    starts = [0, *ends]
    # Each stage needs at least one layer, and the last one ends with the model.
    rises = all(start < stop for start, stop in pairwise(starts))
    if len(ends) != stages or not rises or starts[-1] != layers:
        return None
    return tuple(range(*bounds) for bounds in pairwise(starts))


def _of_checkpoints(placement: Placement) -> list[int]:
    """Return the ends in the newest checkpoint with a valid manifest."""
    owner = Owner(name=placement.owner, membership=placement.membership)
    storage = open_storage(placement, owner=owner)
    try:
        steps = storage.steps()
    except (CheckpointError, OSError):  # the run's first membership makes it
        return []
    # Newest first. A damaged manifest is skipped, as the restore skips it.
    for step in steps:
        try:
            manifest = Manifest.parse(read_manifest(storage.committed(step), step=step))
        except CheckpointError:
            continue
        return _recorded(manifest.trainer, "next")
    return []


def _recorded(trainer: Mapping[str, Any], which: str) -> list[int]:
    match trainer.get(KEY):
        # The pattern checks types: the trainer's state of an older version may lack the key.
        case {"now": [*_], "next": [*_]} as ends:
            return [int(end) for end in ends[which]]
        case _:
            return []


def _ends(stages: Partition) -> list[int]:
    return [own.stop for own in stages]
