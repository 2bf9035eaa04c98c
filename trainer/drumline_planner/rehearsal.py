"""A rehearsal: the smallest slice of a planned run that a machine can train, and what it tells.

The bill is made of formulas, so a slice is billed as the whole run is. What the slice is measured
to hold over what it was predicted to hold corrects the bill of the whole run (`correction`). A
slice keeps the kinds of parallelism, the recompute mode, and the model's widths as far as the
machine holds them; layers, ranks and micro-batches are as few as are legal. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from drumline_contract.config import (
    ConfigError,
    DataConfig,
    DataParallel,
    Family,
    HardwareConfig,
    MemoryConfig,
    ModelConfig,
    OptimizerConfig,
    OptimizerKind,
    ParallelismConfig,
    Precision,
    Recompute,
    TrainerConfig,
)
from drumline_contract.layout import Layout
from drumline_contract.layout_validation import validated_layout, violations
from drumline_contract.shapes.flops import flops_of_run
from drumline_planner import activations
from drumline_planner.correction import UNCORRECTED, MemoryCorrection, is_moving, is_state
from drumline_planner.memory import Line, memory_bill, rank_lines, ranks_in_flight
from drumline_planner.setup import DRUMLINE, TORCH_ON_CPU, TrainingSetup

STEPS = 3
"""Number of steps of a rehearsal. The first allocates, the second settles, the third is measured.
"""
_FACTORS = (0.25, 4.0)
"""Range of plausible factors. A slice outside of it points to an error."""
_MAX_FLOPS, _MOST_BYTES = 2e11, 256 << 20
"""Maximum operations of a slice's step on CPUs, and maximum bytes of a rank there: some seconds."""
_LEAST_SEQUENCE, _LEAST_WORDS, _LEAST_WIDTH = 64, 1024, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalHost:
    """The machine that trains a slice."""

    gpu: str
    """Driver's name of its GPUs. Empty: it has none, and processors compute."""
    devices: int
    """Number of ranks that fit on it."""
    memory_bytes: int
    """Memory of each device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedSlice:
    """Slice that is trained instead of the whole model."""

    config: TrainerConfig
    ranks: int
    smaller: tuple[str, ...]
    """Differences from the planned run: `layers 32 to 2`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceMeasurement:
    """Bytes that rank 0 of a slice held in its last step, and the duration of that step."""

    gpu: str
    state_bytes: int
    """Weights, gradients and optimizer state, counted tensor by tensor."""
    kept_bytes: int | None
    """Most bytes that autograd kept at once. None: not all of it is visible (selective, offloaded).
    """
    peak_bytes: int | None
    """Peak of the device's allocator. None: CPUs have no such allocator."""
    step_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPart:
    """One part of a slice's memory, or its time."""

    part: str
    predicted: float
    measured: float

    @property
    def factor(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted


def slice_of(config: TrainerConfig, layout: Layout, *, host: RehearsalHost) -> RehearsedSlice:
    """Return the smallest valid slice with every kind of parallelism that the host supports.

    Args:
        config: configuration of the whole run, with explicit layout settings.
        layout: layout of the whole run.
        host: the machine that trains the slice.

    Raises:
        ConfigError: no slice is valid, or the run trains images, for which no samples exist.
    """
    if config.model.family is Family.VIT:
        raise ConfigError(
            "model.family: image models cannot be rehearsed, because no images are available"
        )
    plain = _plain(config, on_gpu=bool(host.gpu))
    # Combinations with more kinds of parallelism come first, so the first legal one is the best.
    for degrees in _degrees(layout, host):
        sliced = _sliced(plain, layout, degrees)
        ranks = math.prod(degrees[:5])
        # A combination that the rules reject is skipped, and the next one has fewer kinds.
        if violations(sliced, world_size=ranks):
            continue
        sliced = _shrunk(sliced, ranks=ranks, host=host)
        return RehearsedSlice(
            config=sliced, ranks=ranks, smaller=tuple(_smaller(config, layout, sliced, ranks))
        )
    raise ConfigError("parallelism: no slice of this layout is valid on this machine")


def comparisons(rehearsed: RehearsedSlice, measured: SliceMeasurement) -> tuple[ComparedPart, ...]:
    """Return the predicted and the measured memory of the slice."""
    setup = _setup(rehearsed.config, rehearsed.ranks, on_gpu=bool(measured.gpu))
    lines = rank_lines(setup, 0)
    # Without FSDP the low-precision copy is state that stays, not a gathered unit.
    weights_move = not setup.sharded and setup.lora is None
    held = [line for line in lines if is_state(line)]
    # copies that are not gathered stay, and are counted with the weights
    held += [line for line in lines if weights_move and line.name == "gathered weights"]
    parts = [
        ComparedPart(
            part="weights, gradients, optimizer",
            predicted=_counted(setup, held),
            measured=measured.state_bytes,
        )
    ]
    # Part 2: only where autograd's hooks see everything that is kept.
    if measured.kept_bytes is not None:
        parts.append(
            ComparedPart(
                part="activations kept for backward",
                predicted=_kept(setup),
                measured=measured.kept_bytes,
            )
        )
    # Part 3: the peak covers all temporary memory, so it replaces the part before.
    if measured.peak_bytes is not None:
        moving = [line for line in lines if is_moving(line) and line not in held]
        parts.append(
            ComparedPart(
                part="all temporary memory",
                predicted=sum(line.size for line in moving),
                # At least 1 byte, so that the factor is defined.
                measured=max(1, measured.peak_bytes - measured.state_bytes),
            )
        )
    return tuple(parts)


def _counted(setup: TrainingSetup, held: list[Line]) -> float:
    """Return the bytes at the time when the optimizer begins."""
    sizes = {line.name: line.size for line in held}
    if setup.lora is None:  # summed and shared out by then, as the moments are
        # AdamW has two moments, the others one. Gradients are as large as one moment.
        moments = 2 if setup.optimizer is OptimizerKind.ADAMW else 1
        sizes["gradients"] = sizes["optimizer state"] / moments
    return sum(sizes.values())


def correction_of(parts: Sequence[ComparedPart]) -> MemoryCorrection:
    """Return the correction of the whole memory estimate. The allocator's peak takes precedence.

    Raises:
        ConfigError: a part is so far off that the slice does not represent the run.
    """
    for each in parts:
        # A factor outside of the range shows an error of the bill or of the slice.
        if not _FACTORS[0] <= each.factor <= _FACTORS[1]:
            raise ConfigError(
                f"rehearsal: {each.part} used {each.factor:.2g} times the predicted memory. This"
                " is too far off to correct; please report it"
            )
    # The last part has precedence: the peak if there is one.
    state, *moving = parts
    return MemoryCorrection(
        state=state.factor, moving=moving[-1].factor if moving else UNCORRECTED.moving
    )


def _plain(config: TrainerConfig, *, on_gpu: bool) -> TrainerConfig:
    """Return the configuration for a slice: no checkpoints, no own data, only our metrics."""
    return TrainerConfig(
        model=config.model,
        data=DataConfig(sequence_length=config.data.sequence_length),
        optimizer=OptimizerConfig(kind=config.optimizer.kind),
        parallelism=config.parallelism,
        # what is kept on the host is measured on the device: a slice has room for it
        memory=MemoryConfig(
            recompute=config.memory.recompute, recompute_every=config.memory.recompute_every
        ),
        hardware=HardwareConfig(),
        steps=STEPS,
        global_batch_size=config.global_batch_size,
        micro_batch_size=config.micro_batch_size,
        # 16-bit products are slow on processors, and torch keeps other tensors for them there
        precision=config.precision if on_gpu else Precision.FP32,
        fp8=config.fp8 and on_gpu,
        lora=config.lora,
        log_every_steps=1,
    )


def _degrees(layout: Layout, host: RehearsalHost) -> Iterator[tuple[int, ...]]:
    """Return degrees of tensor, context, pipeline, data, copies and expert parallelism.

    A kind that the run uses has degree 2, or 1 if the host has too few devices. Combinations with
    more kinds come first.
    """
    sharded = layout.data_parallel is DataParallel.FSDP
    whole: tuple[int, ...] = (
        layout.tensor,
        layout.context,
        layout.pipeline,
        layout.shard if sharded else layout.replicate,
        layout.replicate if sharded else 1,
        layout.expert,
    )
    options = [[2, 1] if degree > 1 else [1] for degree in whole]
    return (degrees for degrees in product(*options) if math.prod(degrees[:5]) <= host.devices)


def _fewest_layers(model: ModelConfig, layers: int) -> ModelConfig:
    """Return the smallest number of layers, at most one of them dense in a mixture model."""
    return replace(model, layers=layers, dense_layers=min(model.dense_layers, 1))


def _sliced(config: TrainerConfig, layout: Layout, degrees: tuple[int, ...]) -> TrainerConfig:
    tensor, context, pipeline, data, copies, expert = degrees
    written = config.parallelism
    per_rank = layout.stages_per_rank if pipeline > 1 else 1
    # A pipeline needs two micro-batches for each rank to reach its steady state.
    micro_batches = 2 * pipeline if pipeline > 1 else 1
    share = config.global_batch_size // layout.batch_ranks
    size = min(config.micro_batch_size or share, share)
    return replace(
        config,
        model=_fewest_layers(config.model, max(2, pipeline * per_rank)),
        parallelism=ParallelismConfig(
            data_parallel=written.data_parallel,
            replicate=copies,
            tensor=tensor,
            sequence_parallel=written.sequence_parallel,
            context=context,
            pipeline=pipeline,
            schedule=written.schedule,
            stages_per_rank=per_rank if pipeline > 1 and written.schedule.interleaves else None,
            expert=expert,
        ),
        micro_batch_size=size,
        global_batch_size=size * micro_batches * data * copies,
    )


def _shrunk(config: TrainerConfig, *, ranks: int, host: RehearsalHost) -> TrainerConfig:
    """Halve samples, positions, vocabulary or widths until the slice fits the host."""
    # Samples first, since widths change the kinds of kernels.
    measures = (_fewer_samples, _fewer_positions, _fewer_words, _fewer_experts, _narrower)
    while not _affordable(config, ranks=ranks, host=host):
        for measure in measures:
            try:
                smaller = measure(config)
            except ConfigError:
                continue
            if smaller is not None and not violations(smaller, world_size=ranks):
                config = smaller
                break
        else:
            # No measure shrinks the slice any further.
            raise ConfigError(
                "rehearsal: the smallest slice does not fit on this machine, whose"
                f" {host.devices} ranks have {host.memory_bytes / 2**30:.1f} GiB each"
            )
    return config


def _affordable(config: TrainerConfig, *, ranks: int, host: RehearsalHost) -> bool:
    setup = _setup(config, ranks, on_gpu=bool(host.gpu))
    lines = memory_bill(setup, capacity=0).lines
    if not host.gpu:  # without the context and the buffers of CUDA and NCCL
        lines = tuple(line for line in lines if is_state(line) or is_moving(line))
    allowed = host.memory_bytes if host.gpu else min(host.memory_bytes, _MOST_BYTES)
    # 20 % stay free for memory that the bill does not count.
    if sum(line.size for line in lines) > 0.8 * allowed:
        return False
    flops = flops_of_run(config)
    # On CPUs the operations limit the duration.
    return bool(host.gpu) or flops * setup.global_tokens <= _MAX_FLOPS


def _fewer_samples(config: TrainerConfig) -> TrainerConfig | None:
    size = config.micro_batch_size or 1
    if size == 1:
        return None
    micro_batches = config.global_batch_size // size
    return replace(config, micro_batch_size=size // 2, global_batch_size=size // 2 * micro_batches)


def _fewer_positions(config: TrainerConfig) -> TrainerConfig | None:
    half = config.data.sequence_length // 2
    if half < _LEAST_SEQUENCE * config.parallelism.context:
        return None
    return replace(config, data=replace(config.data, sequence_length=half))


def _fewer_words(config: TrainerConfig) -> TrainerConfig | None:
    half = config.model.vocab_size // 2
    return None if half < _LEAST_WORDS else _with_model(config, vocab_size=half)


def _fewer_experts(config: TrainerConfig) -> TrainerConfig | None:
    half = config.model.experts // 2
    least = max(2 * config.parallelism.expert, config.model.experts_per_token)
    return None if half < least else _with_model(config, experts=half)


def _narrower(config: TrainerConfig) -> TrainerConfig | None:
    model = config.model
    half = model.hidden_size // 2
    if half < _LEAST_WIDTH or model.heads % 2:
        return None
    expert = model.expert_ffn_size
    # Halving both sizes keeps the ratio of heads to features.
    return _with_model(
        config,
        hidden_size=half,
        ffn_size=max(1, model.ffn_size // 2),
        expert_ffn_size=None if expert is None else max(1, expert // 2),
        heads=model.heads // 2,
        kv_heads=model.kv_heads if (model.heads // 2) % model.kv_heads == 0 else model.heads // 2,
    )


def _with_model(config: TrainerConfig, **sizes: int | None) -> TrainerConfig:
    model: ModelConfig = replace(config.model, **sizes)
    return replace(config, model=model)


def _setup(config: TrainerConfig, ranks: int, *, on_gpu: bool) -> TrainingSetup:
    layout = validated_layout(config, world_size=ranks)
    return TrainingSetup.of(config, layout, software=DRUMLINE if on_gpu else TORCH_ON_CPU)


def _kept(setup: TrainingSetup) -> float:
    """Return the bytes that autograd keeps on rank 0 at their maximum."""
    layout, model = setup.layout, setup.model
    partition, in_flight = setup.stage_layers(), ranks_in_flight(setup)
    # The tables of positions are shared by all layers.
    tables = 0.0
    if setup.recompute is not Recompute.NONE and model.family is Family.LLAMA:
        # rotary tables are then kept by recompute itself, not by autograd
        length = setup.sequence_length // layout.context
        tables = setup.width * length * model.features_turned
    kept = 0.0
    for stage, alive in zip(sorted(layout.stages_of(0)), in_flight[0], strict=True):
        kept += alive * activations.layers_kept(setup, partition[stage])
        if stage == 0:
            kept += alive * (activations.embedding_kept(setup) - tables)
        if stage == layout.stages - 1:
            kept += activations.head_kept(setup)
    return kept


def sees_all(config: TrainerConfig) -> bool:
    """Return whether autograd's hooks see exactly what a forward pass keeps."""
    packed = config.lora is not None and config.lora.base_bits != 16
    return config.memory.recompute is not Recompute.SELECTIVE and not packed


def _smaller(
    config: TrainerConfig, layout: Layout, sliced: TrainerConfig, ranks: int
) -> Iterator[str]:
    model, cut = config.model, sliced.model
    sizes: tuple[tuple[str, object, object], ...] = (
        ("ranks", layout.world_size, ranks),
        ("layers", model.layers, cut.layers),
        ("global batch", config.global_batch_size, sliced.global_batch_size),
        ("sequence", config.data.sequence_length, sliced.data.sequence_length),
        ("vocabulary", model.vocab_size, cut.vocab_size),
        ("hidden", model.hidden_size, cut.hidden_size),
        ("heads", model.heads, cut.heads),
        ("experts", model.experts, cut.experts),
        ("precision", str(config.precision), str(sliced.precision)),
    )
    return (f"{name} {before} to {after}" for name, before, after in sizes if before != after)
