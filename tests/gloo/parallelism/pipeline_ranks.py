"""What the ranks of the pipeline's tests do: many layouts, one after the other, in one gang."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import DataParallel, ModelConfig, Schedule
from drumline_contract.layout import Axis, Layout
from drumline_contract.shapes.partition import model_costs, partition
from drumline_trainer.models.build import layer_modules
from drumline_trainer.models.llama import Llama
from drumline_trainer.models.loss import token_losses_sum
from drumline_trainer.parallelism.pipeline_parallel.micro_batches import MicroBatchSpec
from drumline_trainer.parallelism.pipeline_parallel.pipeline import (
    Pipeline,
    stage_modules,
)
from drumline_trainer.parallelism.pipeline_parallel.tied import (
    check_tied_weights,
    sum_tied_gradients,
    tied_copies,
    tied_group,
)
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.dtensor import local_box, local_shard
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World

CPU = torch.device("cpu")
SAMPLES, LENGTH = 2, 6
"""Of a micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One step of a small model."""

    layout: Layout
    micro_batches: int
    tied: bool = False

    def __str__(self) -> str:
        """As a failed test shows it."""
        per_rank, words = self.layout.stages_per_rank, "tied" if self.tied else "untied"
        return f"{self.layout}, {per_rank} stages a rank, {self.micro_batches} at a time, {words}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How far a rank's part of the step is from the plain model's, relatively."""

    loss: float
    gradients: float
    norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What a pipeline said of its stages, and how wrong they would have been."""

    text: str
    gradients: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a plain model computes."""

    loss: float
    gradients: dict[str, Tensor]

    @property
    def norm(self) -> float:
        """Of all gradients together."""
        return sum(float(g.double().square().sum()) for g in self.gradients.values()) ** 0.5


@dataclass(slots=True)
class Worlds:
    """Schedules of the same degrees share their groups: to make them takes longer than a step."""

    joined: dict[Layout, World] = field(default_factory=dict[Layout, World])

    def of(self, layout: Layout) -> World:
        degrees = replace(layout, schedule=Schedule.GPIPE, stages_per_rank=1)
        if degrees not in self.joined:
            self.joined[degrees] = World.join(degrees, device=CPU)
        return replace(self.joined[degrees], layout=layout)


def run_cases(
    placement: Placement, pipe: Connection, cases: Sequence[Case], unsafe: Sequence[Case]
) -> None:
    """Send an `Outcome` for each case, then a `Refusal` for each unsafe one."""
    torch.set_num_threads(1)
    join(placement, device=CPU)
    dist.send_object_list = refuse_to_pickle  # what torch would describe tensors with
    worlds = Worlds()
    for case in cases:
        pipe.send(outcome(case, worlds.of(case.layout)))
    for case in unsafe:
        pipe.send(refusal(case, worlds.of(case.layout)))
    dist.destroy_process_group()


def refuse_to_pickle(*_: object, **__: object) -> None:
    raise AssertionError("a pickled description of tensors travels")


def refusal(case: Case, world: World) -> Refusal:
    """Of units that are sharded after their forward; and what they compute past the guard."""
    text = ""
    try:
        pipeline_of(case, world, stages_of(case, world, reshard=True))
    except ValueError as error:
        text = str(error)
    modules = stages_of(case, world, reshard=False)
    pipeline = pipeline_of(case, world, modules)
    for unit in (layer for module in modules for layer in layer_modules(module)):
        cast("FSDPModule", unit).set_reshard_after_forward(True)
    step(pipeline, case, world)
    slices, gradients = slices_and_gradients(modules)
    return Refusal(text=text, gradients=difference(slices, gradients, plain_step(case)))


def outcome(case: Case, world: World) -> Outcome:
    """Run the step and compare."""
    modules = stages_of(case, world, reshard=not case.layout.keeps_gathered)
    loss = step(pipeline_of(case, world, modules), case, world)
    slices, gradients = slices_and_gradients(modules)
    if case.tied:
        tied = tied_group(world)
        check_tied_weights(slices, tied=tied)
        slices = tied_copies(slices, layout=world.layout, pipeline=world.index(Axis.PIPELINE))
        sum_tied_gradients(slices, gradients, tied=tied)
    dist.all_reduce(loss)
    squares = sum(
        (g.double().square().sum() / s.copies for s, g in zip(slices, gradients, strict=True)),
        start=torch.zeros((), dtype=torch.float64),
    )
    dist.all_reduce(squares)
    copies = 1 if world.layout.data_parallel is DataParallel.FSDP else world.layout.replicate
    expected = plain_step(case)
    return Outcome(
        loss=abs(float(loss) / expected.loss - 1),
        gradients=difference(slices, gradients, expected),
        norm=abs(float(squares / copies) ** 0.5 / expected.norm - 1),
    )


def stages_of(case: Case, world: World, *, reshard: bool) -> list[nn.Module]:
    """This rank's stages of the plain model, sharded where the layout says so."""
    config = model_config(tied=case.tied)
    costs = model_costs(config, sequence_length=LENGTH)
    modules = stage_modules(
        plain_model(tied=case.tied),
        layout=world.layout,
        index=world.index(Axis.PIPELINE),
        partition=partition(costs, stages=world.layout.stages),
    )
    if world.layout.shard > 1:
        mesh = world.mesh(Axis.FSDP)
        for module in modules:
            for unit in (*layer_modules(module), module):
                gathered = None if reshard else False  # None: all units but the root reshard
                sharded = fully_shard(unit, mesh=mesh, reshard_after_forward=gathered)
                sharded.set_gradient_divide_factor(1.0)
                sharded.set_force_sum_reduction_for_comms(True)
    return modules


def pipeline_of(case: Case, world: World, modules: Sequence[nn.Module]) -> Pipeline:
    config = model_config(tied=case.tied)
    tokens = case.micro_batches * world.layout.batch_ranks * SAMPLES * LENGTH
    copies = world.group(Axis.DATA)

    def sum_over_copies(module: nn.Module) -> None:
        if copies is not None:
            for parameter in module.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad, group=copies)

    return Pipeline(
        modules,
        world=world,
        micro_batches=MicroBatchSpec(
            count=case.micro_batches,
            inputs=(SAMPLES, LENGTH),
            hidden=(SAMPLES, LENGTH, config.hidden_size),
            dtype=torch.float32,
        ),
        loss=lambda logits, targets: token_losses_sum(logits, targets) / tokens,
        stage_done=sum_over_copies,
    )


def step(pipeline: Pipeline, case: Case, world: World) -> Tensor:
    """This rank's loss of its share of the samples."""
    index, parts = world.index(Axis.DATA), world.size(Axis.DATA)
    every = samples(case.micro_batches * parts)
    inputs, targets = (batch[index::parts] for batch in every)
    return pipeline.forward_backward(inputs, targets)


def slices_and_gradients(
    modules: Sequence[nn.Module],
) -> tuple[Sequence[TensorSlice], list[Tensor]]:
    slices = [
        TensorSlice(
            name=name,
            shape=tuple(parameter.shape),
            box=local_box(parameter),
            tensor=local_shard(parameter.detach()),
        )
        for module in modules
        for name, parameter in module.named_parameters()
    ]
    gradients: list[Tensor] = []
    for parameter in (p for module in modules for p in module.parameters()):
        whole = torch.full_like(parameter, torch.nan) if parameter.grad is None else parameter.grad
        gradients.append(local_shard(whole.detach()))
    return slices, gradients


def difference(slices: Sequence[TensorSlice], gradients: Sequence[Tensor], expected: Step) -> float:
    """The worst of this rank's slices; infinite where a gradient is missing."""
    worst = 0.0
    for part, gradient in zip(slices, gradients, strict=True):
        whole = expected.gradients[part.name]
        index = tuple(map(slice, part.box.offsets, part.box.ends))
        error = float((gradient - whole[index]).norm() / whole.norm())
        worst = max(worst, float("inf") if math.isnan(error) else error)
    return worst


def model_config(*, tied: bool) -> ModelConfig:
    """Nine layers and a head that weighs more than one: no stages are even."""
    return ModelConfig(
        vocab_size=257,
        layers=9,
        hidden_size=8,
        ffn_size=16,
        heads=2,
        kv_heads=1,
        tied_embeddings=tied,
    )


@functools.cache
def plain_model(*, tied: bool) -> Llama:
    torch.manual_seed(1)
    return Llama(model_config(tied=tied))


def plain_step(case: Case) -> Step:
    return _plain_step(case.micro_batches * case.layout.batch_ranks, tied=case.tied)


@functools.cache
def _plain_step(count: int, *, tied: bool) -> Step:
    model = plain_model(tied=tied)
    inputs, targets = samples(count)
    total = 0.0
    for tokens, wanted in zip(inputs, targets, strict=True):
        loss = token_losses_sum(model(tokens), wanted) / (len(inputs) * SAMPLES * LENGTH)
        loss.backward()
        total += float(loss.detach())
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return Step(loss=total, gradients=gradients)


def samples(count: int) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and targets of so many micro-batches."""
    generator = torch.Generator().manual_seed(count)
    text = torch.randint(257, (count, SAMPLES, LENGTH + 1), generator=generator)
    return [tokens[:, :-1] for tokens in text], [tokens[:, 1:] for tokens in text]
