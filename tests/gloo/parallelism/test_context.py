"""Attention over shared sequences, and a model that shares them, against one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import DataParallel, ModelConfig
from drumline_contract.layout import Axis, Layout
from drumline_trainer.models.llama import Llama
from drumline_trainer.models.loss import token_losses_sum
from drumline_trainer.parallelism.context_parallel.apply import context_parallel
from drumline_trainer.parallelism.context_parallel.ring_attention import ring_attention
from drumline_trainer.parallelism.context_parallel.zigzag import context_slices
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.world import World
from tests.gloo.gang import GangStarter

CPU = torch.device("cpu")
SIZES = (2, 4)
STEPS = 20
MODEL = ModelConfig(hidden_size=24, heads=4, kv_heads=2, ffn_size=40)


@dataclass(frozen=True, kw_only=True)
class Case:
    causal: bool
    heads: int
    groups: int
    head_size: int
    dtype: torch.dtype = torch.float32
    close: float = 1e-6
    """The largest difference, as a part of the largest value."""


CASES = {
    "causal": Case(causal=True, heads=2, groups=2, head_size=16),
    "causal, groups, odd heads": Case(causal=True, heads=4, groups=2, head_size=7),
    "not causal": Case(causal=False, heads=2, groups=2, head_size=16),
    "not causal, one group, odd heads": Case(causal=False, heads=3, groups=1, head_size=5),
    "causal, fp64": Case(
        causal=True, heads=4, groups=1, head_size=6, dtype=torch.float64, close=1e-14
    ),
    "causal, bf16": Case(
        causal=True, heads=4, groups=2, head_size=8, dtype=torch.bfloat16, close=2e-2
    ),
    "not causal, bf16": Case(
        causal=False, heads=2, groups=1, head_size=9, dtype=torch.bfloat16, close=2e-2
    ),
}
"""Sequences of 48 positions: chunks of 12 or 6."""


def drawn(case: Case) -> list[Tensor]:
    """Whole queries, keys, values and the gradient of the output; scores that grow along."""
    seeded = torch.Generator().manual_seed(11)
    heads = [case.heads, case.groups, case.groups, case.heads]
    shapes = [(2, number, 48, case.head_size) for number in heads]
    tensors = [torch.randn(s, generator=seeded, dtype=torch.float64) for s in shapes]
    tensors[1] *= torch.linspace(0.5, 1.5, 48).unsqueeze(-1)
    return [tensor.to(case.dtype) for tensor in tensors]


def attended(attend: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """The output and the gradients of queries, keys and values."""
    *inputs, grad = tensors
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    out = attend(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def ring_error(case: Case, *, world: World) -> float:
    """Of this rank's positions: output and gradients against the whole in fp64."""
    group = world.group(Axis.CONTEXT)
    assert group is not None
    whole = drawn(case)
    mine = context_slices(48, size=world.size(Axis.CONTEXT), index=world.index(Axis.CONTEXT))
    result = attended(
        lambda q, k, v: ring_attention(q, k, v, group=group, causal=case.causal),
        [tensor[:, :, mine] for tensor in whole],
    )
    expected = attended(
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, is_causal=case.causal, enable_gqa=True
        ),
        [tensor.double() for tensor in whole],
    )
    assert {tensor.dtype for tensor in result} == {case.dtype}
    return max(
        float((a - b[:, :, mine]).abs().max() / b.abs().max())
        for a, b in zip(result, expected, strict=True)
    )


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of two whole sequences."""
    seeded = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, MODEL.vocab_size, (2, 33), generator=seeded)
    return tokens[:, :-1], tokens[:, 1:]


def model() -> Llama:
    torch.manual_seed(5)
    return Llama(MODEL)


def trained(model: nn.Module, *, world: World | None = None) -> tuple[list[float], list[Tensor]]:
    """Losses and final weights of this rank's share of every sequence, summed over the ranks."""
    group = world and world.group(Axis.DATA)
    size, index = (world.size(Axis.CONTEXT), world.index(Axis.CONTEXT)) if world else (1, 0)
    positions = context_slices(32, size=size, index=index)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-6)
    losses = []
    for step in range(STEPS):
        inputs, targets = batch(step)
        loss = token_losses_sum(model(inputs[:, positions]), targets[:, positions]) / 64
        loss.backward()
        summed = loss.detach()
        if group is not None:
            for tensor in [summed, *[p.grad for p in model.parameters() if p.grad is not None]]:
                dist.all_reduce(tensor, group=group)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(summed))
    return losses, [parameter.detach() for parameter in model.parameters()]


def work_in_context(placement: Placement, pipe: Connection) -> None:
    """All cases, then a whole model; sends the errors by name, losses and weights."""
    torch.set_num_threads(1)
    join(placement, device=CPU)
    layout = Layout(data_parallel=DataParallel.DDP, context=placement.world_size)
    world = World.join(layout, device=CPU)
    errors = {name: ring_error(case, world=world) for name, case in CASES.items()}
    shared = model()
    context_parallel(shared, world)
    losses, weights = trained(shared, world=world)
    pipe.send((errors, losses, [weight.numpy() for weight in weights]))
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=SIZES, ids=lambda size: f"{size} ranks")
def ranks(request: pytest.FixtureRequest, gangs: GangStarter) -> list[tuple]:
    return gangs.run(work_in_context, world_size=request.param)


@pytest.fixture(scope="module")
def alone() -> tuple[list[float], list[Tensor]]:
    return trained(model())


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("name", CASES)
def test_a_ring_s_output_and_gradients_are_those_of_the_whole(
    ranks: list[tuple], name: str
) -> None:
    errors = [errors[name] for errors, *_ in ranks]
    assert max(errors) <= CASES[name].close


def test_a_model_whose_sequences_are_shared_trains_as_in_one_process(
    ranks: list[tuple], alone: tuple[list[float], list[Tensor]]
) -> None:
    losses, weights = alone
    for _, gathered, shared in ranks:
        assert gathered == pytest.approx(losses, rel=1e-6)
        for a, b in zip(shared, weights, strict=True):
            assert float((torch.from_numpy(a) - b).norm() / b.norm()) < 1e-5
