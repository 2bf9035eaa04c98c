"""On one rank of fsdp bf16 copies live in passes only: as ddp's in their bits, in fewer bytes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from drumline_contract.config import (
    DataParallel,
    ModelConfig,
    OptimizerConfig,
    ParallelismConfig,
    Precision,
    Recompute,
)
from drumline_contract.layout import Layout
from drumline_trainer.assembly.optimizer import build_optimizer
from drumline_trainer.memory.recompute import recompute
from drumline_trainer.models.build import build_on_meta, layer_modules
from drumline_trainer.models.initialize import initialize_slices
from drumline_trainer.optimization.optimizer import Optimizer
from drumline_trainer.parallelism.data_parallel.apply import data_parallel
from drumline_trainer.parallelism.data_parallel.model import DataParallelModel
from drumline_trainer.parallelism.data_parallel.precision import copy_on_use
from drumline_trainer.parallelism.data_parallel.weights import CutStages
from drumline_trainer.sharding.world import World
from tests.unit.trainer.memory.alive import Alive

MODEL = ModelConfig(
    layers=8, hidden_size=64, ffn_size=512, heads=2, vocab_size=256, tied_embeddings=False
)
TOKENS = 8


def made(
    kind: DataParallel, *, mode: Recompute = Recompute.NONE
) -> tuple[nn.Module, DataParallelModel, Optimizer]:
    layout = Layout.of(ParallelismConfig(data_parallel=kind), world_size=1)
    world = World(layout=layout, rank=0, device=torch.device("cpu"))
    stage = build_on_meta(MODEL)
    recompute(stage, mode=mode, every=None)
    weights = data_parallel(
        CutStages(stages=[stage]), world=world, precision=Precision.BF16, backwards=2
    )
    initialize_slices(weights.slices, config=MODEL, seed=0)
    weights.refresh_copies()
    return stage, weights, build_optimizer(weights.slices, OptimizerConfig(), world)


def step(
    stage: nn.Module, weights: DataParallelModel, optimizer: Optimizer, number: int
) -> list[Tensor]:
    """Losses, gradients and weights of a step of two micro-batches."""
    losses: list[Tensor] = []
    weights.zero()
    for part in range(2):
        tokens = torch.arange(TOKENS) * (number + part + 1)
        loss = stage(tokens.remainder(256).unsqueeze(0)).float().square().mean()
        loss.backward()
        losses.append(loss.detach())
    gradients = weights.gradients()
    kept = [gradient.clone() for gradient in gradients]
    optimizer.update(gradients, rate=0.01)
    weights.refresh_copies()
    return [*losses, *kept, *(each_slice.tensor.clone() for each_slice in weights.slices)]


def test_a_step_is_that_of_ddp() -> None:
    on_use, always = made(DataParallel.FSDP), made(DataParallel.DDP)
    count = len(on_use[1].slices)
    first, other = step(*on_use, 0)[: 2 + count], step(*always, 0)[: 2 + count]
    for mine, theirs in zip(first, other, strict=True):
        if mine.dim() == 1:  # a norm's gradient is rounded to bf16 on its way
            assert torch.allclose(mine, theirs, atol=float(theirs.abs().max()) * 2**-6)
        else:
            assert torch.equal(mine, theirs)
    assert {p.dtype for p in on_use[0].parameters()} == {torch.float32}


@pytest.mark.parametrize("mode", [Recompute.SELECTIVE, Recompute.FULL, Recompute.BLOCKS])
def test_recomputing_copies_again_and_changes_no_bit(mode: Recompute) -> None:
    again, kept = made(DataParallel.FSDP, mode=mode), made(DataParallel.FSDP)
    for number in range(2):
        first, other = step(*again, number), step(*kept, number)
        assert all(map(torch.equal, first, other))


def test_the_state_is_16_bytes_for_each_parameter_and_what_is_at_work() -> None:
    most: dict[DataParallel, int] = {}
    for kind in (DataParallel.FSDP, DataParallel.DDP):
        with Alive() as alive:
            stage, weights, optimizer = made(kind, mode=Recompute.FULL)
            alive.most = alive.now
            for number in range(2):
                weights.zero()
                tokens = torch.arange(TOKENS) * (number + 1)
                stage(tokens.remainder(256).unsqueeze(0)).float().square().mean().backward()
                optimizer.update(weights.gradients(), rate=0.01)
                weights.refresh_copies()
        most[kind] = alive.most
    count = sum(each_slice.tensor.numel() for each_slice in weights.slices)
    layer = sum(parameter.numel() for parameter in layer_modules(stage)[0].parameters())
    activations = 4 * TOKENS * 1024  # little beside weights: bounded, not counted
    assert most[DataParallel.FSDP] <= 16 * count + 8 * layer + activations
    assert most[DataParallel.DDP] >= 18 * count


def test_split_backward_passes_give_the_same_gradients() -> None:
    """Torch's pipelines look the weights up again between the two, by then without copies."""
    whole, split = (hidden_gradients(split=split) for split in (False, True))
    assert len(whole) > 2
    assert all(map(torch.equal, whole, split))


def hidden_gradients(*, split: bool) -> list[Tensor]:
    stage = build_on_meta(MODEL)
    for part in ("embedding", "norm", "output"):
        setattr(stage, part, None)
    copy_on_use(stage, Precision.BF16)
    stage.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    for parameter in stage.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    x_BSD = torch.randn(1, TOKENS, MODEL.hidden_size, generator=generator).bfloat16()
    out_BSD = stage(x_BSD.requires_grad_())
    gradient = torch.ones_like(out_BSD)
    if split:
        _, groups = stage_backward_input([out_BSD], [gradient], [x_BSD], iter(stage.parameters()))
        stage_backward_weight(iter(stage.parameters()), groups)
    else:
        out_BSD.backward(gradient)
    return [parameter.grad for parameter in stage.parameters() if parameter.grad is not None]
