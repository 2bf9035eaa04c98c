"""What ranks do in the tests of data parallelism, and the one process they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import DataParallel, MemoryConfig, ParallelismConfig, Precision
from drumline_contract.layout import Axis, Layout
from drumline_trainer.optimization.gradient_clipping import clip_gradients
from drumline_trainer.parallelism.data_parallel.apply import data_parallel
from drumline_trainer.parallelism.data_parallel.model import DataParallelModel
from drumline_trainer.parallelism.data_parallel.weights import CutStages
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import Cut, TensorSlice
from drumline_trainer.sharding.world import World

CPU = torch.device("cpu")
SAMPLES, LENGTH, VOCABULARY, WIDTH, EXPERTS = 16, 6, 13, 10, 4
STEPS = 3
MAX_NORM = 0.5
EXPERT_WEIGHT = "layers.1.experts.weight"
SUMS = ("all_reduce", "reduce_scatter_tensor", "reduce_scatter_single")
"""Torch's functions that add up gradients; FSDP2 calls the last since 2.15."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to train the toy."""

    kind: DataParallel
    replicate: int = 1
    backwards: int = 1
    precision: Precision = Precision.FP32
    expert: int = 1
    experts: int = EXPERTS
    shard_gradients: bool = False

    def layout(self, world_size: int) -> Layout:
        parallelism = ParallelismConfig(
            data_parallel=self.kind, replicate=self.replicate, expert=self.expert
        )
        return Layout.of(parallelism, world_size=world_size)


@dataclass(frozen=True, kw_only=True)
class Held:
    """A slice on its way to the test."""

    name: str
    shape: tuple[int, ...]
    box: Box
    copies: int
    copy: int
    weight: Any
    gradient: Any
    """Of the first step, before clipping."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    held: tuple[Held, ...]
    norms: tuple[float, ...]
    losses: tuple[float, ...]
    logits: Any
    """Of the trained modules, for all samples."""


class Experts(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, WIDTH, WIDTH))

    def forward(self, x_BSD: Tensor) -> Tensor:
        return (x_BSD @ self.weight.sum(0)).tanh()


class Layer(nn.Module):
    def __init__(self, experts: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 7)
        self.down = nn.Linear(7, WIDTH, bias=False)
        self.experts = Experts(experts) if experts else None
        self.idle = nn.Parameter(torch.empty(3))

    def forward(self, x_BSD: Tensor) -> Tensor:
        x_BSD = x_BSD + self.down(F.gelu(self.up(self.norm(x_BSD))))
        return x_BSD if self.experts is None else x_BSD + self.experts(x_BSD)


class Toy(nn.Module):
    """Tied embeddings, sizes that do not divide, parameters that nothing uses."""

    def __init__(self, experts: int = EXPERTS) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({"0": Layer(0), "1": Layer(experts), "2": Layer(0)})
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        x_BSD = self.embedding(tokens_BS)
        for layer in self.layers.values():
            x_BSD = layer(x_BSD)
        return F.linear(self.norm(x_BSD), self.embedding.weight)


def toy_on_meta(experts: int = EXPERTS) -> Toy:
    with torch.device("meta"):
        return Toy(experts)


def initial(name: str, shape: tuple[int, ...]) -> Tensor:
    """Weights that depend on the name alone."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return torch.randn(shape, generator=generator) * 0.4


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """This part of the sum over all tokens, by the number of all tokens."""
    logits = model(inputs).float()
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return total / (SAMPLES * LENGTH)


def adamw(tensors: Sequence[Tensor]) -> tuple[list[nn.Parameter], torch.optim.AdamW]:
    parameters = [nn.Parameter(tensor) for tensor in tensors]
    return parameters, torch.optim.AdamW(parameters, lr=3e-3, eps=1e-6, weight_decay=0.1)


def fill(slices: Sequence[TensorSlice]) -> None:
    for part in slices:
        index = tuple(slice(o, e) for o, e in zip(part.box.offsets, part.box.ends, strict=True))
        part.tensor.copy_(initial(part.name, part.shape)[index])


def own_batch(world: World, step: int) -> list[Tensor]:
    parts, index = world.size(Axis.DATA), world.index(Axis.DATA)
    return [part.chunk(parts)[index] for part in batch(step)]


def forward_backward(stage: nn.Module, world: World, *, step: int, backwards: int) -> Tensor:
    inputs, targets = own_batch(world, step)
    total = torch.zeros(())
    for micro in zip(inputs.chunk(backwards), targets.chunk(backwards), strict=True):
        loss = loss_of(stage, *micro)
        loss.backward()
        total += loss.detach()
    return total


def expert_cuts(case: Case, world: World) -> dict[str, Cut]:
    each = case.experts // case.expert
    box = Box(offsets=(world.index(Axis.EXPERT) * each, 0, 0), shape=(each, WIDTH, WIDTH))
    return {EXPERT_WEIGHT: Cut(shape=(case.experts, WIDTH, WIDTH), box=box)}


def prepared(case: Case, world: World, *, alone: bool = False) -> tuple[Toy, DataParallelModel]:
    """The toy with its first weights; `alone`: without the other ranks."""
    stage = toy_on_meta(case.experts // case.expert)
    model = data_parallel(
        CutStages(stages=[stage], cuts=expert_cuts(case, world), experts={EXPERT_WEIGHT}),
        world=World(layout=Layout(), rank=0, device=CPU) if alone else world,
        precision=case.precision,
        backwards=case.backwards,
        bucket_bytes=1000,
        memory=MemoryConfig(shard_gradients=case.shard_gradients),
    )
    fill(model.slices)
    model.refresh_copies()
    return stage, model


def trained(case: Case, world: World) -> Outcome:
    stage, model = prepared(case, world)
    parameters, optimizer = adamw([part.tensor for part in model.slices])
    norms, losses, first = [], [], []
    for step in range(STEPS):
        loss = forward_backward(stage, world, step=step, backwards=case.backwards)
        gradients = model.gradients()
        first = first or [gradient.clone() for gradient in gradients]
        totals = clip_gradients(model.slices, gradients, loss=loss, world=world, max_norm=MAX_NORM)
        norms.append(totals.gradient_norm)
        losses.append(totals.loss)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
        model.zero()
        model.refresh_copies()
    with torch.no_grad():
        logits = stage(batch(0)[0]).float()
    held = tuple(
        Held(
            name=part.name,
            shape=part.shape,
            box=part.box,
            copies=part.copies,
            copy=part.copy,
            weight=part.tensor.numpy().copy(),
            gradient=gradient.numpy(),
        )
        for part, gradient in zip(model.slices, first, strict=True)
    )
    return Outcome(
        held=held, norms=tuple(norms), losses=tuple(losses), logits=logits.numpy().copy()
    )


Job = Callable[[Case, World], Any]


def work_through(placement: Placement, pipe: Connection, work: list[tuple[Job, Case]]) -> None:
    """One job after the other in the same processes; those of one layout share its world."""
    torch.set_num_threads(1)
    join(placement, device=CPU)
    worlds: dict[Layout, World] = {}
    for job, case in work:
        layout = case.layout(placement.world_size)
        if layout not in worlds:
            worlds[layout] = World.join(layout, device=CPU)
        pipe.send(job(case, worlds[layout]))
    dist.destroy_process_group()


def trained_in_one_process() -> Outcome:
    """Torch's own clipping and AdamW on the whole batch."""
    model = Toy()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial(name, tuple(parameter.shape)))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-6, weight_decay=0.1)
    norms, losses, first = [], [], {}
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model, *batch(step))
        loss.backward()
        losses.append(loss.item())
        first = first or {n: p.grad.numpy().copy() for n, p in model.named_parameters()}
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).item())
        optimizer.step()
    held = tuple(
        Held(
            name=name,
            shape=tuple(p.shape),
            box=Box(offsets=(0,) * p.dim(), shape=tuple(p.shape)),
            copies=1,
            copy=0,
            weight=p.detach().numpy(),
            gradient=first[name],
        )
        for name, p in model.named_parameters()
    )
    with torch.no_grad():
        logits = model(batch(0)[0]).numpy()
    return Outcome(held=held, norms=tuple(norms), losses=tuple(losses), logits=logits)


def events(case: Case, world: World) -> list[str]:
    """In which order layers go backward and sums start."""
    stage, model = prepared(case, world)
    noted: list[str] = []
    for name, layer in stage.layers.items():
        layer.register_full_backward_pre_hook(_noting(lambda *_: None, noted, f"layer {name}"))
    originals = {name: getattr(dist, name) for name in SUMS if hasattr(dist, name)}
    for name, original in originals.items():
        setattr(dist, name, _noting(original, noted, "sum"))
    forward_backward(stage, world, step=0, backwards=case.backwards)
    model.gradients()
    for name, original in originals.items():
        setattr(dist, name, original)
    return noted


def _noting(call: Callable[..., Any], events: list[str], event: str) -> Callable[..., Any]:
    def noted(*arguments: Any, **options: Any) -> Any:
        events.append(event)
        return call(*arguments, **options)

    return noted


def expert_sums(case: Case, world: World) -> tuple[list[tuple[Box, Any]], Any]:
    """What data parallelism made of the experts' gradients, and this rank's own gradient."""
    stage, model = prepared(case, world)
    forward_backward(stage, world, step=0, backwards=case.backwards)
    summed = [
        (part.box, gradient.clone().numpy())
        for part, gradient in zip(model.slices, model.gradients(), strict=True)
        if part.name == EXPERT_WEIGHT
    ]
    plain, own = prepared(replace(case, backwards=1), world, alone=True)
    forward_backward(plain, world, step=0, backwards=1)
    experts = [part.name for part in own.slices].index(EXPERT_WEIGHT)
    return summed, own.gradients()[experts].numpy()


def uneven_use(case: Case, world: World) -> list[tuple[str, Box, list[float]]]:
    """Gradients where each backward pass uses other parameters on each rank."""
    with torch.device("meta"):
        stage = nn.ParameterDict({str(i): nn.Parameter(torch.empty(5)) for i in range(6)})
    model = data_parallel(
        CutStages(stages=[stage]),
        world=world,
        precision=case.precision,
        backwards=case.backwards,
        bucket_bytes=40,
    )
    for _ in range(2):
        for number in range(case.backwards):
            used = [stage[str((number + world.rank + k) % 5)] for k in range(2)]
            torch.stack(used).sum().backward()
        gradients = model.gradients()
        model.zero()
    return [(p.name, p.box, g.tolist()) for p, g in zip(model.slices, gradients, strict=True)]
