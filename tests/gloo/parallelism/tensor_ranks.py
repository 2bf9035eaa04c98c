"""What ranks do in the tests of tensor parallelism: train beside the plain model and compare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.utils.checkpoint import checkpoint

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import Family, ModelConfig, Schedule
from drumline_contract.layout import Axis, Layout
from drumline_contract.shapes import loss_rows
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.loss import token_losses_sum
from drumline_trainer.models.mixture import mixtures_of, set_loss_scale
from drumline_trainer.parallelism.tensor_parallel import collectives as communications
from drumline_trainer.parallelism.tensor_parallel.apply import tensor_parallel
from drumline_trainer.parallelism.tensor_parallel.vocabulary import vocabulary_parallel_loss
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import Cut
from drumline_trainer.sharding.world import World

CPU = torch.device("cpu")
SAMPLES, LENGTH, STEPS, RATE = 3, 8, 3, 0.1


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model, cut in one way."""

    model: ModelConfig
    sequence_parallel: bool
    dtype: torch.dtype = torch.float32
    stages: int = 1
    """Into how many parts the model is cut before, as if for a pipeline that splits the backward
    pass; a rank holds all of them."""
    recompute: bool = False
    """Whether attention is worked out again on the way back."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a rank had of one parameter, and how far it was from the plain model's."""

    cut: Cut
    gradient_error: float
    weight_error: float
    gradient_digest: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one case on one rank."""

    losses: list[float]
    expected_losses: list[float]
    held: dict[str, Held]


def compare(placement: Placement, pipe: Connection, cases: list[Case]) -> None:
    """Train every case's model cut and whole; send the outcomes."""
    torch.set_num_threads(1)
    loss_rows.CHUNK_ELEMENTS = 1 << 10  # some rows at a time, as of a large batch
    join(placement, device=CPU)
    layout = Layout(tensor=placement.world_size)
    world = World.join(layout, device=CPU)
    pipe.send([outcome_of(case, world) for case in cases])
    dist.destroy_process_group()


def outcome_of(case: Case, world: World) -> Outcome:
    plain = with_values(case)
    stages, cuts = cut_stages(case, world, plain)
    inputs, targets = batch(case.model)
    group = world.group(Axis.TENSOR)
    assert group is not None
    expected, losses = [], []
    for _ in range(STEPS):
        expected.append(step([plain], inputs, targets, token_losses_sum))
        losses.append(
            step(
                stages,
                inputs,
                targets,
                partial(vocabulary_parallel_loss, group=group, vocabulary=case.model.outputs),
            )
        )
    whole = dict(plain.named_parameters())
    length = torch.cat([w.grad.flatten() for w in whole.values() if w.grad is not None]).norm()
    held = {
        name: held_of(parameter, whole[name], cuts[name], length=float(length))
        for stage in stages
        for name, parameter in stage.named_parameters()
    }
    return Outcome(losses=losses, expected_losses=expected, held=held)


def with_values(case: Case) -> nn.Module:
    """The whole model, the same on every rank and no weight at a value that hides mistakes."""
    plain = build_on_meta(case.model).to_empty(device=CPU)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in plain.named_parameters():
        values = torch.randn(parameter.shape, generator=generator) * 0.1
        is_scale = "norm" in name and name.endswith("weight")
        parameter.data.copy_(values + 1 if is_scale else values)
    return plain.to(case.dtype)


def cut_stages(
    case: Case, world: World, plain: nn.Module
) -> tuple[list[nn.Module], dict[str, Cut]]:
    """The model's stages, cut on the meta device and filled from the plain model by their boxes."""
    stages, cuts = [], {}
    schedule = Schedule.ZERO_BUBBLE if case.stages > 1 else Schedule.ONE_F_ONE_B
    world = replace(world, layout=replace(world.layout, pipeline=case.stages, schedule=schedule))
    for number in range(case.stages):
        stage = build_on_meta(case.model).to(case.dtype)
        keep_stage(stage, number=number, stages=case.stages)
        mine = tensor_parallel(stage, world, sequence_parallel=case.sequence_parallel)
        stage.to_empty(device=CPU)
        for name, parameter in stage.named_parameters():
            parameter.data.copy_(part(plain.get_parameter(name).detach(), mine[name].box))
        if case.recompute:
            recompute_attention(stage)
        stages.append(stage)
        cuts |= mine
    return stages, cuts


def recompute_attention(model: nn.Module) -> None:
    """The inside alone, which is entered once."""
    for name, block in model.named_modules():
        if name.endswith(".attention"):
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def keep_stage(model: nn.Module, *, number: int, stages: int) -> None:
    """Drop what other stages have."""
    layers = model.layers
    assert isinstance(layers, nn.ModuleDict)
    for index in list(layers)[: number * len(layers) // stages]:
        del layers[index]
    for index in list(layers)[len(layers) // (stages - number) :]:
        del layers[index]
    if number:
        model.embedding = None
    if number < stages - 1:
        model.norm = model.output = None


def batch(model: ModelConfig) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(11)
    if model.family is Family.VIT:
        side = model.image_size
        images = torch.randint(256, (SAMPLES, model.channels, side, side), generator=generator)
        return images, torch.randint(model.classes, (SAMPLES,), generator=generator)
    tokens = torch.randint(model.vocab_size, (SAMPLES, LENGTH + 1), generator=generator)
    tokens[:, -1] = model.vocab_size - 1  # the last word is on the last rank
    targets = tokens[:, 1:].clone()
    targets[0, 2:4] = -100
    return tokens[:, :-1], targets


def step(
    stages: list[nn.Module],
    inputs: Tensor,
    targets: Tensor,
    loss_of: Callable[[Tensor, Tensor], Tensor],
) -> float:
    """One step of gradient descent; the gradients stay."""
    x = inputs
    for stage in stages:
        stage.zero_grad()
        set_loss_scale(mixtures_of(stage), 1 / targets.numel())
        x = stage(x)
    loss = loss_of(x, targets) / targets.numel()
    loss.backward()
    with torch.no_grad():
        for stage in stages:
            for parameter in stage.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=RATE)
    return loss.item()


def held_of(parameter: nn.Parameter, whole: nn.Parameter, cut: Cut, *, length: float) -> Held:
    """`length` is that of the whole gradient: some of its parts are zero but for rounding."""
    assert parameter.grad is not None
    assert whole.grad is not None
    return Held(
        cut=cut,
        gradient_error=distance(parameter.grad, whole.grad, cut.box) / length,
        weight_error=distance(parameter.detach(), whole.detach(), cut.box)
        / float(whole.detach().norm()),
        gradient_digest=blake2b(parameter.grad.float().numpy().tobytes()).hexdigest(),
    )


def distance(mine: Tensor, whole: Tensor, box: Box) -> float:
    return float((mine.double() - part(whole, box).double()).norm())


def part(whole: Tensor, box: Box) -> Tensor:
    everything = Box(offsets=(0,) * whole.dim(), shape=tuple(whole.shape))
    return whole[box.slices_within(everything)]


def go_back(placement: Placement, pipe: Connection) -> None:
    """Send what each communication makes of known tensors, and of gradients that come back."""
    join(placement, device=CPU)
    group = dist.group.WORLD
    assert group is not None
    pipe.send(dict(_forward_and_back(group)))
    dist.destroy_process_group()


def _forward_and_back(group: ProcessGroup) -> Iterator[tuple[str, tuple[list, list]]]:
    for name in (
        *("copy_to_region", "reduce_from_region", "gather_positions"),
        *("reduce_scatter_positions", "scatter_positions", "divide_gradient"),
    ):
        positions = torch.arange(4.0).reshape(1, 4, 1)
        x = (positions + 10.0 ** group.rank()).requires_grad_()
        y = getattr(communications, name)(x, group)
        y.backward(torch.arange(float(y.numel())).reshape(y.shape) * 10.0 ** group.rank())
        assert x.grad is not None
        yield name, (y.flatten().tolist(), x.grad.flatten().tolist())
    pieces = [range(1), range(1, 4)]
    x = torch.tensor([[float(at) for at in pieces[group.rank()]]], requires_grad=True)
    y = communications.gather_features(x, group, pieces=pieces)
    y.backward(torch.arange(4.0).reshape(1, 4) + 10.0)
    assert x.grad is not None
    yield "gather_features", (y.flatten().tolist(), x.grad.flatten().tolist())
