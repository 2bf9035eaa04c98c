"""Experts shared out over ranks, against all of them in one process."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TypeVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import DataParallel, ModelConfig
from drumline_contract.layout import Axis, Layout
from drumline_trainer.models.llama import Llama
from drumline_trainer.models.loss import token_losses_sum
from drumline_trainer.models.mixture import MixtureOfExperts, mixtures_of, set_loss_scale
from drumline_trainer.parallelism.context_parallel.apply import context_parallel
from drumline_trainer.parallelism.context_parallel.zigzag import context_slices
from drumline_trainer.parallelism.expert_parallel.apply import expert_names, expert_parallel
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import Cut
from drumline_trainer.sharding.world import World
from tests.gloo.gang import GangStarter

pytestmark = pytest.mark.extended  # `make test` runs the layouts with ep2

CPU = torch.device("cpu")
RANKS = 4
STEPS = 20
CONFIG = ModelConfig(
    hidden_size=16,
    heads=2,
    kv_heads=1,
    ffn_size=24,
    experts=8,
    experts_per_token=2,
    shared_experts=1,
    balance_weight=0.3,
)
ALLOWED = {
    "any": range(8),
    "one expert gets none": (0, 1, 2, 3, 4, 6, 7),
    "the last rank gets none": (0, 1, 2, 3),
    "two experts get all": (2, 5),
}
"""Which experts the router chooses from."""
LAYOUTS = {
    "dp 4, ep 2": Layout(data_parallel=DataParallel.DDP, replicate=4, expert=2),
    "dp 4, ep 4": Layout(data_parallel=DataParallel.DDP, replicate=4, expert=4),
    "dp 2, cp 2, ep 4": Layout(data_parallel=DataParallel.DDP, replicate=2, context=2, expert=4),
    "hsdp 2x2, ep 2": Layout(replicate=2, shard=2, expert=2),
}
Result = dict[str, Tensor]
Model = TypeVar("Model", bound=nn.Module)


def seeded(model: Model) -> Model:
    torch.manual_seed(3)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    set_loss_scale(mixtures_of(model), 1 / 80)
    return model


def mixture(case: str) -> nn.Module:
    """One mixture: the first feature of its rows is always 1 and in the router forbids experts."""
    made = seeded(MixtureOfExperts(replace(CONFIG, balance_weight=0.0)))
    with torch.no_grad():
        made.router.weight[:, 0] = -100
        made.router.weight[list(ALLOWED[case]), 0] = 0
    return nn.Sequential(made)


def rows(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Four sequences of 5 positions, and the gradient of what becomes of them."""
    generator = torch.Generator().manual_seed(8)
    x, grad = torch.randn(2, RANKS, 5, 16, generator=generator).to(dtype)
    x[..., 0] = 1
    return x, grad


def passed(model: nn.Module, x: Tensor, grad: Tensor) -> Result:
    """Output and all gradients."""
    leaf = x.clone().requires_grad_()
    out = model(leaf)
    out.backward(grad)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert leaf.grad is not None
    return {"out": out.detach(), "input": leaf.grad, **gradients}


def shared_out(model: nn.Module, world: World) -> dict[str, Cut]:
    """As a trainer does it: nothing is cut by a tensor axis here."""
    context_parallel(model, world)
    return expert_parallel(model, world, {})


def summed(tensors: Result, experts: frozenset[str], world: World) -> Result:
    """Gradients summed over the ranks that hold the same weights."""
    for name, tensor in tensors.items():
        group = world.group(Axis.EXPERT_DATA if name in experts else Axis.DATA)
        if group is not None:
            dist.all_reduce(tensor, group=group)
    return tensors


def mixture_errors(case: str, world: World, dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """The largest differences of this rank's output and gradients from those of one process."""
    x, grad = rows(dtype)
    whole = passed(mixture(case).to(dtype), x, grad)
    model = mixture(case).to(dtype)
    cuts = shared_out(model, world)
    mine = slice(world.rank, world.rank + 1)
    result = passed(model, x[mine], grad[mine])
    local = {name: result.pop(name) for name in ("out", "input")}
    expected = {name: whole.pop(name)[mine] for name in ("out", "input")}
    for name, tensor in summed(result, expert_names(model), world).items():
        local[name] = tensor
        expected[name] = whole[name]
        if name in cuts:
            expected[name] = whole[name][cuts[name].box.slices_within(_whole(cuts[name]))]
    assert local.keys() == expected.keys() == {"out", "input", *dict(model.named_parameters())}
    return {name: _difference(local[name], expected[name]) for name in local}


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, CONFIG.vocab_size, (4, 21), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def trained_alone() -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and weights of one process."""
    model = seeded(Llama(CONFIG))
    world = World(layout=Layout(), rank=0, device=CPU)
    losses = train(model, world=world, share=slice(0, 4), positions=torch.arange(20))
    return losses, {name: p.detach().numpy() for name, p in model.named_parameters()}


def trained(world: World, weights: dict[str, np.ndarray]) -> tuple[list[float], dict[str, float]]:
    """Losses of a model with this layout, and how far its weights are from these."""
    model = seeded(Llama(CONFIG))
    cuts = shared_out(model, world)
    parts = world.layout.batch_ranks
    samples = world.index(Axis.DATA) // world.layout.context
    share = slice(samples * 4 // parts, (samples + 1) * 4 // parts)
    positions = context_slices(20, size=world.layout.context, index=world.index(Axis.CONTEXT))
    losses = train(model, world=world, share=share, positions=torch.from_numpy(positions))
    errors = {}
    for name, parameter in model.named_parameters():
        expected = torch.from_numpy(weights[name])
        if name in cuts:
            expected = expected[cuts[name].box.slices_within(_whole(cuts[name]))]
        errors[name] = float((parameter.detach() - expected).norm() / expected.norm())
    return losses, errors


def train(model: nn.Module, *, world: World, share: slice, positions: Tensor) -> list[float]:
    """Of this rank's share of the batches; gradients are summed."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)
    losses = []
    for step in range(STEPS):
        inputs, targets = (tensor[share][:, positions] for tensor in batch(step))
        loss = token_losses_sum(model(inputs), targets) / 80
        loss.backward()
        gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        totals = summed({**gradients, "loss": loss.detach()}, expert_names(model), world)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(totals["loss"]))
    return losses


def _whole(cut: Cut) -> Box:
    return replace(cut.box, offsets=(0,) * len(cut.shape), shape=cut.shape)


def _difference(tensor: Tensor, expected: Tensor) -> float:
    return float((tensor - expected).abs().max() / expected.abs().max())


def work_with_experts(
    placement: Placement, pipe: Connection, weights: dict[str, np.ndarray]
) -> None:
    """Every case of a mixture alone, then whole models in each layout."""
    torch.set_num_threads(1)
    join(placement, device=CPU)
    worlds = {name: World.join(layout, device=CPU) for name, layout in LAYOUTS.items()}
    two = worlds["dp 4, ep 2"]
    alone = {case: mixture_errors(case, two) for case in ALLOWED}
    alone["bf16"] = mixture_errors("the last rank gets none", two, torch.bfloat16)
    pipe.send((alone, {name: trained(world, weights) for name, world in worlds.items()}))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def alone() -> tuple[list[float], dict[str, np.ndarray]]:
    return trained_alone()


@pytest.fixture(scope="module")
def ranks(gangs: GangStarter, alone: tuple[list[float], dict[str, np.ndarray]]) -> list[tuple]:
    return gangs.run(work_with_experts, alone[1], world_size=RANKS)


@pytest.mark.parametrize("case", ALLOWED)
def test_rows_that_travel_to_their_experts_give_the_same_output_and_gradients(
    ranks: list[tuple], case: str
) -> None:
    for errors, _ in ranks:
        assert max(errors[case].values()) <= 1e-6, errors[case]


def test_no_row_for_a_rank_is_fine_in_bf16_too(ranks: list[tuple]) -> None:
    for errors, _ in ranks:
        assert max(errors["bf16"].values()) <= 2e-2


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_model_whose_experts_are_shared_out_trains_as_in_one_process(
    ranks: list[tuple], alone: tuple[list[float], dict[str, np.ndarray]], name: str
) -> None:
    for _, models in ranks:
        losses, errors = models[name]
        assert losses == pytest.approx(alone[0], rel=1e-6)
        assert max(errors.values()) < 1e-5, errors
