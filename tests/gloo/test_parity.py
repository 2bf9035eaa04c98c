"""Sharding is invisible: gradients and losses are those of one plain model."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import Precision, TrainerConfig
from drumline_trainer.data.sources import open_dataset
from drumline_trainer.forward_backward import forward_backward
from drumline_trainer.metrics.losses import read_losses
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.models.initialize import initialize, initialize_slices
from drumline_trainer.models.llama import Llama
from drumline_trainer.optimization.gradient_clipping import clip_gradients
from drumline_trainer.parallelism.batch_shard import BatchShard
from drumline_trainer.sharding.boxes import Box
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import joined, train_rank


def gradients(placement: Placement, pipe: Connection, config: TrainerConfig) -> None:
    parallel_model, world = joined(placement, config)
    initialize_slices(parallel_model.slices, config=config.model, seed=config.seed)
    parallel_model.weights.refresh_copies()
    dataset = open_dataset(config.data, seed=config.seed)
    share = BatchShard.of(dataset, config=config, world=world)
    reporter = RunReporter(
        config=config,
        placement=placement,
        heartbeats=None,
        write=lambda _: None,
        losses_file=None,
        peak_flops=None,
    )
    loss = forward_backward(
        parallel_model, iter([share.load(0)]), device=world.device, reporter=reporter
    )
    result = parallel_model.gradients()
    totals = clip_gradients(
        parallel_model.slices,
        result,
        loss=loss,
        world=world,
        max_norm=config.optimizer.max_gradient_norm,
    )
    parts = [
        (part.name, part.box, gradient.numpy())
        for part, gradient in zip(parallel_model.slices, result, strict=True)
    ]
    pipe.send((totals.loss, totals.gradient_norm, parts))
    dist.destroy_process_group()


def plain_gradients(config: TrainerConfig) -> tuple[float, float, dict[str, torch.Tensor]]:
    """The same with torch's own clipping on one unsharded model."""
    model = Llama(config.model)
    initialize(model, seed=config.seed)
    dataset = open_dataset(config.data, seed=config.seed)
    batch = dataset.batch(range(config.global_batch_size))
    logits = model(torch.from_numpy(batch.inputs))
    loss = F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.targets).flatten())
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.max_gradient_norm)
    return loss.item(), norm.item(), {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.extended(keep=1)
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
        answers = gangs.run(gradients, config, world_size=world_size)
        for got_loss, got_norm, parts in answers:
            assert got_loss == pytest.approx(loss, rel=1e-6)
            assert got_norm == pytest.approx(norm, rel=1e-5)
            assert {name for name, _, _ in parts} == expected.keys()
            for name, box, values in parts:
                part = expected[name][box.slices_within(whole_box(expected[name]))]
                error = float((torch.from_numpy(values) - part).abs().max()) if part.numel() else 0
                assert error <= 1e-5 * float(expected[name].abs().max()), name


def whole_box(tensor: torch.Tensor) -> Box:
    return Box(offsets=(0,) * tensor.dim(), shape=tuple(tensor.shape))


@pytest.mark.extended  # tests/layouts holds it of each layout
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


@pytest.mark.extended  # tests/layouts holds it of each layout
def test_bf16_follows_fp32(gangs: GangStarter, tmp_path: Path) -> None:
    curves = {}
    for precision in Precision:
        losses = tmp_path / f"{precision}.jsonl"
        config = small(tmp_path, precision=precision.value)
        gangs.run(train_rank, config, losses, world_size=2)
        curves[precision] = read_losses(losses)
    assert curves[Precision.BF16] == pytest.approx(curves[Precision.FP32], rel=1e-2)
    assert curves[Precision.BF16] != curves[Precision.FP32]
