"""Compute lower bounds of seconds and bytes for each kind of entry of the search.

    outer       the work of the micro-batches spread over the ranks as evenly as can be; no bubble,
                no message of data parallelism
    scheduled   and filling and draining the pipeline, by formula; then its order, walked
    choice      and what data parallelism and the optimizer add: exact but for FSDP's gathers and
                for what a pool measured beyond its links (`constants.PoolConstants`)

Each is at least the one before, and none is above the time of what lies below it (a test compares).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace

from drumline_contract.config import DataParallel, ModelConfig, Offload, Recompute, Schedule
from drumline_contract.layout import Layout
from drumline_contract.shapes.flops import weights
from drumline_contract.shapes.weight_sizes import learning_shares
from drumline_planner import activations
from drumline_planner.fabric import fabric
from drumline_planner.memory import CONTEXT_BYTES
from drumline_planner.setup import TrainingSetup, stage_layers
from drumline_planner.space import Choice, Goal, Outer, Scheduled, chosen_memory
from drumline_planner.work import Spans, Speeds, head_passes, layer_passes, with_host_copies


@dataclass(slots=True, kw_only=True)
class OuterBounds:
    """Bounds of one search. Computed values are cached."""

    goal: Goal
    allowed: int
    """Bytes that a layout may use."""
    seconds: dict[Outer, float | None] = field(default_factory=dict[Outer, float | None])
    layers: dict[Outer, tuple[float, float, float]] = field(
        default_factory=dict[Outer, tuple[float, float, float]]
    )
    """Seconds of the three passes of a layer, the minimum over all kinds of layers."""
    spans: dict[tuple[int, int, int], Spans] = field(
        default_factory=dict[tuple[int, int, int], Spans]
    )
    """Location of tensor, context and expert ranks, by the numbers of these ranks."""

    def of(self, outer: Outer) -> float | None:
        """Return a lower bound on the seconds of all inner choices; None if none fits in memory."""
        if outer not in self.seconds:
            self.seconds[outer] = self._of(outer)
        return self.seconds[outer]

    def _of(self, outer: Outer) -> float | None:
        goal, cluster = self.goal, self.goal.cluster
        setup = outline(goal, outer)
        pipeline = outer.pipeline
        # Phase 1: memory. An outer choice without any fitting inner one is dropped at once.
        least = goal.correction.least * _least_memory(setup, outer, ranks=cluster.gpus)
        if least > self.allowed:
            return None
        # Phase 2: seconds of each kind of layer.
        speeds = Speeds.of(cluster.gpu, goal.constants, setup)
        degrees = (outer.tensor, outer.context, outer.expert)
        if degrees not in self.spans:
            # Axes of equal degrees lie on the same links.
            self.spans[degrees] = fabric(setup, cluster, goal.constants).inner
        spans = self.spans[degrees]
        kinds = [
            (with_host_copies(kind, layer_passes(kind, speeds, spans)), count)
            for kind, count in setup.kinds()
        ]
        head = head_passes(setup, speeds, spans)
        # The minimum over all kinds keeps the bound below every partition.
        self.layers[outer] = (
            min(layer.forward.total for layer, _ in kinds),
            min(layer.input.total for layer, _ in kinds),
            min(layer.weight.total for layer, _ in kinds),
        )
        work = sum(
            count * (layer.forward.total + layer.input.total + layer.weight.total)
            for layer, count in kinds
        )
        work += head.forward.total + head.input.total + head.weight.total
        # Phase 3: spread evenly over the stages, which no schedule can beat.
        return setup.micro_batches * work / pipeline + goal.constants.step

    def ramp(self, scheduled: Scheduled) -> float:
        """Return a lower bound of a step with the time in which the pipeline fills and drains.

        The bound is the largest value over all ranks. Each value is the seconds until the rank
        begins, its work, and the seconds until the first rank is done. If backward passes are
        split, gradients of weights fill the end. The bound of the outer choice must be known.
        """
        goal, outer, schedule = self.goal, scheduled.outer, scheduled.schedule
        if outer.pipeline == 1:
            return 0.0
        forward, back, weight = self.layers[outer]
        whole = forward + back + weight
        # Split backward passes let weight gradients fill the end of the pipeline.
        ramp = forward if schedule.splits_backward else whole
        stages = outer.pipeline * scheduled.stages_per_rank
        if stages > goal.config.model.layers:
            return 0.0
        micro_batches = goal.config.global_batch_size // _copies(goal, outer) // outer.micro_batch
        shares = _shares(
            goal.config.model,
            Layout(
                pipeline=outer.pipeline,
                schedule=Schedule.ZBV if schedule.is_v_shaped else Schedule.INTERLEAVED,
                stages_per_rank=scheduled.stages_per_rank,
            ),
            goal.config.tokens_per_sample,
        )
        # The bound of a rank: wait for the first micro-batch, then all own work.
        most = max(before * ramp + micro_batches * own * whole for own, before in shares)
        return most + goal.constants.step


def outline(goal: Goal, outer: Outer) -> TrainingSetup:
    """Return the setup of an outer choice, with one stage per rank and without sharding."""
    config, data = goal.config, _copies(goal, outer)
    memory = chosen_memory(config.memory, outer)
    # Blocks need at least the memory and time that full has without copies.
    if outer.recompute is Recompute.BLOCKS:  # never less than full, without copies
        full, nowhere = Recompute.FULL, Offload.NONE
        memory = replace(memory, recompute=full, offload_activations=nowhere)
    return TrainingSetup(
        model=config.model,
        layout=Layout(
            data_parallel=DataParallel.DDP,
            replicate=data,
            tensor=outer.tensor,
            context=outer.context,
            expert=outer.expert,
            pipeline=outer.pipeline,
            sequence_parallel=config.parallelism.sequence_parallel,
        ),
        sequence_length=config.tokens_per_sample,
        micro_batch=outer.micro_batch,
        micro_batches=config.global_batch_size // data // outer.micro_batch,
        recompute=memory.recompute,
        memory=memory,
        precision=config.precision,
        fp8=config.fp8,
        optimizer=config.optimizer.kind,
        averages=config.optimizer.average_decay > 0,
        lora=config.lora,
        learning=learning_shares(config.model, trainable=config.trainable, freeze=config.freeze),
        frozen_copy=config.has_frozen_copy,
        software=goal.software,
    )


def of_kind(setup: TrainingSetup, choice: Choice) -> TrainingSetup:
    """Return the setup of an order with this choice's kind of data parallelism."""
    data = setup.layout.batch_ranks
    fsdp = choice.kind is DataParallel.FSDP
    layout = replace(
        setup.layout,
        data_parallel=choice.kind,
        replicate=choice.replicate if fsdp else data,
        shard=data // choice.replicate if fsdp else 1,
    )
    return replace(setup, layout=layout)


def least_state(setup: TrainingSetup, *, ranks: int) -> float:
    """Return the bytes of weights, moments and a frozen copy, divided by all ranks."""
    host = setup.memory
    on_device = host.offload_parameters == "none" and host.offload_optimizer == "none"
    copy = setup.width * weights(setup.model) / ranks if setup.frozen_copy else 0.0
    learns_all = setup.lora is None and setup.learning == (1.0, 1.0)
    # 8 bytes: fp32 weights and one moment. Every optimizer has at least these.
    state = 8.0 * weights(setup.model) / ranks if on_device and learns_all else 0.0
    return copy + state


def _copies(goal: Goal, outer: Outer) -> int:
    """Return the number of parts into which a global batch is divided."""
    return goal.cluster.gpus // (outer.tensor * outer.context * outer.pipeline)


@functools.lru_cache(maxsize=1024)
def _shares(
    model: ModelConfig, layout: Layout, sequence_length: int
) -> tuple[tuple[int, int], ...]:
    """Return the possible numbers of layers of a rank, each with the layers before it."""
    sizes = list(map(len, stage_layers(model, layout.stages, sequence_length)))
    before, most = 0, dict[int, int]()
    for place in range(layout.pipeline):
        most[sum(sizes[stage] for stage in layout.stages_of(place))] = before
        before += sizes[place]
    return tuple(most.items())


def _least_memory(setup: TrainingSetup, outer: Outer, *, ranks: int) -> float:
    """Return a lower bound on the bytes of the fullest rank, for any inner choice."""
    layers, pipeline = setup.model.layers, setup.layout.pipeline
    kept = 0.0
    on_device = setup.memory.offload_activations is Offload.NONE
    if outer.recompute is not Recompute.BLOCKS and on_device:
        # At most as many micro-batches are alive as the pipeline has stages.
        alive = min(setup.micro_batches, pipeline)
        # One layer fewer than the mean bounds uneven partitions.
        fewest = range(max(1, layers // pipeline - 1))
        kept = alive * min(activations.layers_kept(kind, fewest) for kind, _ in setup.kinds())
    return kept + least_state(setup, ranks=ranks) + CONTEXT_BYTES
