"""The memory bill of the fullest rank, line by line, and whether it fits.

Every line says what it is made of. Weights, gradients and optimizer state are those that the data
parallelism's kind keeps (`parallelism.data_parallel`); activations are `activations`' times the
micro-batches in flight that the schedule's order gives. What cannot be counted is reserved: the
CUDA context, NCCL's buffers, and a share of everything that comes and goes for fragmentation.
O(ranks of the pipeline).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from drumline_contract.config import DataParallel, Offload, OptimizerKind, Precision, Recompute
from drumline_contract.layout import Layout
from drumline_contract.shapes.layer_kinds import kinds_among, layer_kinds
from drumline_planner import activations
from drumline_planner.adapter_weights import (
    DOUBLY_PACKED_BYTES,
    PACKED_BYTES,
    UNPACKING_BYTES,
    largest_packed,
    packed_weights,
    trained_by_lora,
)
from drumline_planner.pipeline_schedules import in_flight
from drumline_planner.rank_weights import largest_layer, rank_parameters
from drumline_planner.setup import TrainingSetup, parameters

CONTEXT_BYTES = 0.75 * 2**30
"""Memory of a process on a GPU: the CUDA context, cuBLAS and its workspaces."""
GROUP_BYTES = 0.12 * 2**30
"""NCCL's buffers of one group of ranks."""
FRAGMENTATION = 0.05
"""Share of activations, gathered weights and buffers that the allocator cannot reuse."""
BUCKET_BYTES = 25 * 2**20
"""Bytes of gradients per message. Two buffers exist at a time, for packing and receiving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a bill."""

    name: str
    size: float
    """Size in bytes."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Memory of the fullest rank at its peak."""

    lines: tuple[Line, ...]
    capacity: int
    """Memory of the device in bytes."""
    place: int
    """Position of the rank in the pipeline."""

    @property
    def total(self) -> float:
        """Sum of all lines in bytes."""
        return sum(line.size for line in self.lines)

    @property
    def fits(self) -> bool:
        """Return whether the device has enough memory."""
        return self.total <= self.capacity


HeldActivations = Mapping[int, tuple[Line, ...]]
"""Temporary memory of activations, by place in the pipeline."""


def memory_bill(
    setup: TrainingSetup, *, capacity: int, held: HeldActivations | None = None
) -> Bill:
    """Return the memory estimate of the rank with the highest need.

    Args:
        setup: the model on a layout.
        capacity: bytes of the device.
        held: `held_activations` of a setup that differs in its kind of data parallelism alone.
    """
    # Activations do not depend on the kind of data parallelism, so a search computes them once.
    held = held_activations(setup) if held is None else held
    bills = {place: rank_lines(setup, place, own) for place, own in held.items()}
    fullest = max(bills, key=lambda place: sum(line.size for line in bills[place]))
    return Bill(lines=bills[fullest], capacity=capacity, place=fullest)


def held_activations(setup: TrainingSetup) -> HeldActivations:
    """Return the lines that all kinds of data parallelism share, for ranks that may be fullest."""
    return {place: tuple(_activations(setup, place)) for place in _full_places(setup)}


def moving_bytes(held: HeldActivations) -> float:
    """Return the bytes that the fullest rank needs for any kind of data parallelism."""
    most = max(sum(line.size for line in own) for own in held.values())
    # Fragmentation applies to memory that comes and goes.
    return CONTEXT_BYTES + (1 + FRAGMENTATION) * most


def _full_places(setup: TrainingSetup) -> tuple[int, ...]:
    """Return the places of the pipeline that may be the fullest.

    Among places with equal layers and equal ends of the model, only the one with the most
    micro-batches in flight can be the fullest.
    """
    layout = setup.layout
    if layout.pipeline == 1:
        return (0,)
    # The key leaves out data parallelism, so that all its kinds share the cache entry.
    order_alone = Layout(
        pipeline=layout.pipeline,
        schedule=layout.schedule,
        stages_per_rank=layout.stages_per_rank,
    )
    kinds = tuple(_counted_kinds(setup, layers) for layers in setup.stage_layers())
    return _full_of_order(order_alone, kinds, ranks_in_flight(setup))


def _counted_kinds(setup: TrainingSetup, layers: range) -> tuple[int, ...]:
    """Return the number of these layers of each kind of the model."""
    counts = dict(kinds_among(setup.model, layers))
    return tuple(counts.get(kind, 0) for kind, _ in layer_kinds(setup.model))


@functools.lru_cache(maxsize=1024)
def _full_of_order(
    layout: Layout, kinds_of: tuple[tuple[int, ...], ...], alive: tuple[tuple[int, ...], ...]
) -> tuple[int, ...]:
    """Return the memory of a pipeline with a number of layers of each kind per stage.

    It is cached, because all kinds of data parallelism use it.
    """
    best: dict[tuple[object, ...], tuple[int, int]] = {}
    for place in range(layout.pipeline):
        # Equal layers and equal ends of the model: only the micro-batches in flight differ.
        stages = sorted(layout.stages_of(place))
        kinds = tuple(kinds_of[stage] for stage in stages)
        key = (kinds, stages[0] == 0, stages[-1] == layout.stages - 1)
        held = sum(count * sum(layers) for count, layers in zip(alive[place], kinds, strict=True))
        if key not in best or held > best[key][0]:
            best[key] = (held, place)
    return tuple(place for _, place in best.values())


def ranks_in_flight(setup: TrainingSetup) -> tuple[tuple[int, ...], ...]:
    """Return the micro-batches that are alive at once, by place of the pipeline and its stages."""
    layout = setup.layout
    if layout.pipeline == 1:
        return ((1,),)
    return in_flight(
        layout.schedule,
        ranks=layout.pipeline,
        stages_per_rank=layout.stages_per_rank,
        micro_batches=setup.micro_batches,
    )


def rank_lines(
    setup: TrainingSetup, place: int, held: Sequence[Line] | None = None
) -> tuple[Line, ...]:
    """Return every line of the rank at a place of the pipeline. `held` has the activations.

    Args:
        setup: model, batch and layout.
        place: index on the pipeline axis.
        held: memory of activations, if it is known.
    """
    # Phase 1: state and activations.
    dense, experts = rank_parameters(setup, place)
    held = _activations(setup, place) if held is None else held
    lines = [*_state(setup, dense, experts), *_frozen_copy(setup, dense, experts), *held]
    lines.append(
        Line(
            name="communication buffers",
            size=_buffers(setup),
            note="gradient buckets, and NCCL's buffers of each group",
        )
    )
    # Phase 2: overheads that depend on the lines before.
    moving = sum(line.size for line in lines if line.name in _MOVING)
    lines.append(
        Line(
            name="fragmentation",
            size=FRAGMENTATION * moving,
            note=f"{FRAGMENTATION:.0%} of the temporary memory of a step",
        )
    )
    lines.append(Line(name="CUDA context", size=CONTEXT_BYTES, note="the process on the device"))
    return tuple(line for line in lines if line.size)


_MOVING = frozenset(
    {
        "gathered weights",
        "unpacked weights",
        "activations",
        "recomputed layer",
        "embedding and head",
        "logits and their gradients",
    }
)


def _state(setup: TrainingSetup, dense: float, experts: float) -> list[Line]:
    """Return the lines of weights, copies, gradients and optimizer state."""
    # Phase 1: other code bases and LoRA have their own accounting.
    if setup.software.mixed_state is not None:
        return _foreign_state(setup, dense + experts)
    if setup.lora is not None:
        return _lora_state(setup, dense + experts)
    # Phase 2: bytes per weight. AdamW has two fp32 moments, SGD and Muon one.
    moments = {OptimizerKind.ADAMW: 8, OptimizerKind.SGD: 4, OptimizerKind.MUON: 4}[setup.optimizer]
    dense_ranks = setup.shard_ranks
    # Expert parallelism already divides experts, so fewer ranks share each of them.
    expert_ranks = max(1, dense_ranks // setup.layout.expert)
    whole, shared = dense + experts, dense / dense_ranks + experts / expert_ranks
    # Frozen weights have neither gradients nor moments.
    dense, experts = dense * setup.learning[0], experts * setup.learning[1]
    learning, own = dense + experts, dense / dense_ranks + experts / expert_ranks
    low = setup.width == 2
    kind, pipeline = setup.layout.data_parallel, setup.layout.pipeline
    copy, note = 0.0, ""
    # Phase 3: state by kind of data parallelism (ZeRO, Rajbhandari et al. 2020).
    if kind is DataParallel.FSDP:
        weights = 4 * own + setup.width * (shared - own)
        gradients, state = 4 * own, moments * own
        if dense_ranks > 1 and setup.micro_batches > 1 and not setup.memory.shard_gradients:
            gradients, note = 4 * learning, ", whole until the last micro-batch"
        copy = _gathered(setup, whole)
    elif kind in (DataParallel.ZERO1, DataParallel.ZERO2):
        weights = 4 * own if low else 4 * whole
        copy = 2 * whole if low else 0.0
        # A pipeline accumulates whole gradients also with ZeRO-2.
        first = kind is DataParallel.ZERO1 or pipeline > 1
        gradients, state = 4 * (learning if first else own), moments * own
    else:
        weights = 4 * learning if low else 4 * whole
        gradients, state = 4 * learning, moments * learning
        copy = 2 * whole if low else 0.0
    # Phase 4: state in the host's memory does not count here.
    on_host = setup.memory
    if on_host.offload_parameters is not Offload.NONE:
        weights = gradients = state = 0.0
    elif on_host.offload_optimizer is not Offload.NONE:
        state = 0.0
        weights = 0.0 if low and kind is not DataParallel.FSDP else weights
    # The average is one fp32 number for each number of one moment.
    averaged = state / moments if setup.averages else 0.0
    shards = f"over {dense_ranks} ranks" if dense_ranks > 1 else "on every rank"
    return [
        Line(name="parameters", size=weights, note=f"fp32, {shards}"),
        Line(name="gathered weights", size=copy, note=f"{setup.precision}, in use or copied"),
        Line(name="gradients", size=gradients, note=f"fp32{note}"),
        Line(name="optimizer state", size=state, note=f"{setup.optimizer}, {shards}"),
        Line(name="average of weights", size=4 * averaged, note=f"fp32, {shards}"),
    ]


def _frozen_copy(setup: TrainingSetup, dense: float, experts: float) -> Iterator[Line]:
    """Return the gathered frozen weights. They are released before the larger ones are gathered."""
    if not setup.frozen_copy:
        return
    ranks = setup.shard_ranks if setup.sharded else 1
    shared = dense / ranks + experts / max(1, ranks // setup.layout.expert)
    shards = f"over {ranks} ranks" if ranks > 1 else "on every rank"
    note = f"frozen, {setup.precision}, {shards}"
    yield Line(name="reference", size=setup.width * shared, note=note)


def _gathered(setup: TrainingSetup, whole: float) -> float:
    """Return the gathered weights of FSDP.

    These are two units in use and the gradients of a third, or all units if they are kept.
    """
    if setup.layout.keeps_gathered:
        return setup.width * whole
    parts, tensor = parameters(setup.model), setup.layout.tensor
    unit = largest_layer(setup)
    if setup.shard_ranks == 1:
        if setup.precision is Precision.FP32:
            return 0.0
        # Layers that are recomputed forget the low-precision copy after the pass.
        forgets = setup.recompute in (Recompute.FULL, Recompute.BLOCKS)
        return setup.width * (unit if forgets else whole)
    ends = max(parts.embedding, parts.head + parts.tied) / tensor
    # The ends are gathered as units of their own, and can be larger than a layer.
    return setup.width * (2 * unit + ends) + 4 * max(unit, ends)


def _lora_state(setup: TrainingSetup, whole: float) -> list[Line]:
    """Return the state of LoRA. Packed weights are on every rank, and FSDP shards the others."""
    assert setup.lora is not None  # noqa: S101 - the caller looked
    trained, packed = trained_by_lora(setup), packed_weights(setup)
    ranks = setup.shard_ranks
    averaged = trained / ranks if setup.averages else 0.0
    bits = DOUBLY_PACKED_BYTES if setup.lora.double_quantization else PACKED_BYTES
    # Packed weights are not sharded, so the rest is counted apart.
    rest = setup.width * max(0.0, whole - packed) / (ranks if setup.sharded else 1)
    return [
        Line(name="parameters", size=rest, note=f"frozen, {setup.precision}"),
        Line(name="packed parameters", size=bits * packed, note="frozen, 4 bits, on every rank"),
        # Adapters: weight 4, gradient 4, two moments 8.
        Line(name="adapters", size=(4 + 4 + 8) * trained / ranks, note="fp32 with Adam's state"),
        Line(name="average of weights", size=4 * averaged, note="fp32, of the adapters"),
        Line(
            name="gathered weights",
            size=_gathered_frozen(setup, whole - packed) if setup.sharded and ranks > 1 else 0.0,
            note=f"{setup.precision}, in use",
        ),
        Line(
            name="unpacked weights",
            size=UNPACKING_BYTES * largest_packed(setup),
            note="of one product at a time",
        ),
    ]


def _gathered_frozen(setup: TrainingSetup, unpacked: float) -> float:
    """Return `_gathered` without gradients, for weights that are not packed."""
    if setup.layout.keeps_gathered:
        return setup.width * unpacked
    parts, tensor = parameters(setup.model), setup.layout.tensor
    unit = largest_layer(setup)
    ends = max(parts.embedding, parts.head + parts.tied) / tensor
    return setup.width * (2 * unit + ends)


def _foreign_state(setup: TrainingSetup, whole: float) -> list[Line]:
    assert setup.software.mixed_state is not None  # noqa: S101 - the caller looked
    weight, gradient, state = setup.software.mixed_state
    ranks = setup.shard_ranks
    summed = gradient * whole
    if setup.layout.data_parallel is DataParallel.ZERO2:
        summed /= ranks
    return [
        Line(name="parameters", size=weight * whole, note="16 bits"),
        Line(name="gradients", size=summed, note="summed over the micro-batches"),
        Line(name="optimizer state", size=state * whole / ranks, note="fp32 weights and moments"),
    ]


def _activations(setup: TrainingSetup, place: int) -> list[Line]:
    layout = setup.layout
    partition = setup.stage_layers()
    stages = layout.stages_of(place)
    alive = ranks_in_flight(setup)[place]
    by_stage = list(zip(sorted(stages), alive, strict=True))
    kept = sum(
        count * activations.layers_kept(setup, partition[stage]) for stage, count in by_stage
    )
    note = f"recompute {setup.recompute}, {sum(alive)} micro-batch(es) in flight"
    if setup.memory.offload_activations is not Offload.NONE:
        here = min(kept, max(_not_offloaded(setup, partition[stage]) for stage in stages))
        note += f", {(kept - here) / 2**30:.1f} GiB of them on the host"
        kept = here
    ends = logits = 0.0
    for stage, count in by_stage:
        if stage == 0:
            ends += count * activations.embedding_kept(setup)
        if stage == layout.stages - 1:
            ends += activations.head_kept(setup)
            logits = activations.loss_peak(setup)
    return [
        Line(name="activations", size=kept, note=note),
        Line(
            name="recomputed layer",
            size=max(activations.recompute_peak(setup, partition[stage]) for stage in stages),
            note="during the backward pass",
        ),
        Line(name="embedding and head", size=ends, note="tokens, last norm, loss"),
        Line(name="logits and their gradients", size=logits, note="during the loss computation"),
    ]


def _not_offloaded(setup: TrainingSetup, layers: range) -> float:
    """Return the layers in memory: one computed group and two that are copied.

    In a pipeline also the last two of the micro-batch before, which no pass waited for.
    """
    run = 1
    if setup.recompute is Recompute.BLOCKS:
        run = activations.run_length(setup, len(layers))
    groups = 3 if setup.layout.pipeline == 1 else 5
    largest = max(activations.layers_kept(kind, range(run)) for kind, _ in setup.kinds(layers))
    return groups * largest


def _buffers(setup: TrainingSetup) -> float:
    layout = setup.layout
    degrees = (layout.tensor, layout.context, layout.pipeline, setup.data_ranks, layout.expert)
    groups = sum(degree > 1 for degree in degrees)
    buckets = 0 if setup.sharded or setup.data_ranks == 1 else 4 * BUCKET_BYTES
    return groups * GROUP_BYTES + buckets
