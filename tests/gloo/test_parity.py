"""Sharding is invisible: gradients and losses are those of one plain model."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from drumline_trainer.config import Precision, TrainerConfig
from drumline_trainer.data.opening import open_dataset
from drumline_trainer.metrics.losses import read_losses
from drumline_trainer.models.initialize import initialize
from drumline_trainer.models.llama import Llama, next_token_loss
from drumline_trainer.optimization.gradients import clip_and_total
from drumline_trainer.parallelism.mesh import build_mesh
from drumline_trainer.placement import Placement
from drumline_trainer.train import load_batch
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import CPU, joined_model, train_rank


def gradients(placement: Placement, pipe: Connection, config: TrainerConfig) -> None:
    model = joined_model(placement, config.model, precision=config.precision)
    initialize(model, seed=config.seed)
    dataset = open_dataset(config.data, seed=config.seed)
    samples = dataset.rank_samples(
        0,
        batch=config.global_batch_size,
        rank=placement.rank,
        world_size=placement.world_size,
    )
    inputs_BS, targets_BS = load_batch(dataset, samples, device=CPU)
    local_loss = next_token_loss(model(inputs_BS), targets_BS)
    local_loss.backward()
    mesh = build_mesh(device=CPU, world_size=placement.world_size)
    totals = clip_and_total(
        model, local_loss, mesh=mesh, max_norm=config.optimizer.max_gradient_norm
    )
    whole = {name: p.grad.full_tensor().numpy() for name, p in model.named_parameters()}
    pipe.send((totals.loss, totals.gradient_norm, whole))
    dist.destroy_process_group()


def plain_gradients(config: TrainerConfig) -> tuple[float, float, dict[str, torch.Tensor]]:
    """The same with torch's own clipping on one unsharded model."""
    model = Llama(config.model)
    initialize(model, seed=config.seed)
    dataset = open_dataset(config.data, seed=config.seed)
    inputs_BS, targets_BS = load_batch(dataset, range(config.global_batch_size), device=CPU)
    loss = next_token_loss(model(inputs_BS), targets_BS)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.max_gradient_norm)
    return loss.item(), norm.item(), {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize(("tied", "max_norm"), [(True, 1e-3), (False, 1e3)])
def test_gradients_are_those_of_one_plain_model(
    gangs: GangStarter, tmp_path: Path, tied: bool, max_norm: float
) -> None:
    config = small(
        tmp_path, model={"tied_embeddings": tied}, optimizer={"max_gradient_norm": max_norm}
    )
    loss, norm, expected = plain_gradients(config)
    assert (norm > max_norm) == (max_norm < 1)
    for world_size in (1, 4):
        for got_loss, got_norm, got in gangs.run(gradients, config, world_size=world_size):
            assert got_loss == pytest.approx(loss, rel=1e-6)
            assert got_norm == pytest.approx(norm, rel=1e-5)
            assert got.keys() == expected.keys()
            for name, values in got.items():
                scale = float(expected[name].abs().max())
                error = float((torch.from_numpy(values) - expected[name]).abs().max())
                assert error <= 1e-5 * scale, name


def test_losses_are_equal_on_one_two_and_four_ranks(gangs: GangStarter, tmp_path: Path) -> None:
    config = small(tmp_path)
    curves = []
    for world_size in (1, 2, 4):
        losses = tmp_path / f"losses-{world_size}.jsonl"
        gangs.run(train_rank, config, losses, world_size=world_size)
        curves.append(read_losses(losses))
    assert list(curves[0]) == list(range(1, config.steps + 1))
    assert curves[1] == pytest.approx(curves[0], rel=1e-6)
    assert curves[2] == pytest.approx(curves[0], rel=1e-6)


def test_bf16_follows_fp32(gangs: GangStarter, tmp_path: Path) -> None:
    curves = {}
    for precision in Precision:
        losses = tmp_path / f"{precision}.jsonl"
        config = small(tmp_path, precision=precision.value)
        gangs.run(train_rank, config, losses, world_size=2)
        curves[precision] = read_losses(losses)
    assert curves[Precision.BF16] == pytest.approx(curves[Precision.FP32], rel=1e-2)
    assert curves[Precision.BF16] != curves[Precision.FP32]
