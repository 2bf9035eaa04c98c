"""Packed documents on several ranks: loss and gradients are those of each document alone."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist
from torch import nn

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import Precision, TrainerConfig, merge
from drumline_contract.layout_validation import validated_layout
from drumline_trainer.assembly.assemble import assemble
from drumline_trainer.data.sources import open_dataset
from drumline_trainer.forward_backward import forward_backward
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.initialize import initialize, initialize_slices
from drumline_trainer.models.loss import token_losses_sum
from drumline_trainer.parallelism.batch_shard import BatchShard
from drumline_trainer.recovery.rendezvous import join
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.world import World
from tests.gloo.configs import SMALL
from tests.gloo.gang import GangStarter

pytestmark = pytest.mark.extended(keep=1)

CPU = torch.device("cpu")
RANKS = 2
MIXTURE = {"experts": 4, "tied_embeddings": False}
LLAMA, GPT2 = {"kv_heads": 2}, {"family": "gpt2", "kv_heads": 2, "max_positions": 16}
CASES: dict[str, dict[str, Any]] = {
    "context": {"model": LLAMA, "parallelism": {"context": 2}},
    "context, gpt2": {
        "model": GPT2,
        "parallelism": {"context": 2},
        "memory": {"recompute": "full"},
    },
    "tensor": {"model": LLAMA, "parallelism": {"tensor": 2}},
    "tensor, gpt2": {"model": GPT2, "parallelism": {"tensor": 2}, "micro_batch_size": 2},
    "pipeline": {"model": LLAMA, "parallelism": {"pipeline": 2}, "micro_batch_size": 1},
    "pipeline, gpt2": {
        "model": {**GPT2, "layers": 4},
        "parallelism": {"pipeline": 2, "schedule": "zbv"},
        "memory": {"recompute": "full"},
        "micro_batch_size": 1,
    },
    "context, bf16": {"model": LLAMA, "parallelism": {"context": 2}, "precision": "bf16"},
    "experts": {"model": MIXTURE, "parallelism": {"expert": 2}, "micro_batch_size": 1},
}
Part = tuple[str, Box, npt.NDArray[np.float32]]


def config_of(case: dict[str, Any], folder: Path) -> TrainerConfig:
    data = {"source": str(folder), "pattern": "*.txt", "packing": "separate"}
    return TrainerConfig.from_dict(merge(merge(SMALL, {"data": data}), case))


def one_step(placement: Placement, pipe: Connection, folder: Path) -> None:
    """Of every case the part of the loss and the gradients that this rank has."""
    torch.set_num_threads(1)
    join(placement, device=CPU)
    pipe.send(
        {name: passed(config_of(case, folder), placement=placement) for name, case in CASES.items()}
    )
    dist.destroy_process_group()


def passed(config: TrainerConfig, *, placement: Placement) -> tuple[float, list[Part]]:
    world = World.join(validated_layout(config, world_size=RANKS), device=CPU)
    parallel_model = assemble(config, world)
    initialize_slices(parallel_model.slices, config=config.model, seed=config.seed)
    parallel_model.weights.refresh_copies()
    share = BatchShard.of(open_dataset(config.data, seed=config.seed), config=config, world=world)
    reporter = RunReporter(
        config=config,
        placement=placement,
        heartbeats=None,
        write=lambda _: None,
        losses_file=None,
        peak_flops=None,
    )
    loss = forward_backward(parallel_model, iter([share.load(0)]), device=CPU, reporter=reporter)
    loss /= world.layout.tensor  # the ranks of that axis have the same one
    gradients = zip(parallel_model.slices, parallel_model.gradients(), strict=True)
    return float(loss), [(part.name, part.box, gradient.numpy()) for part, gradient in gradients]


def alone(config: TrainerConfig) -> tuple[float, nn.Module]:
    """Every document of the batch passed through a whole model on its own."""
    model = build_on_meta(config.model).to_empty(device=CPU)
    initialize(model, seed=config.seed)
    samples = range(config.global_batch_size)
    dataset = open_dataset(config.data, seed=config.seed)
    batch = dataset.batch(samples)
    assert batch.documents is not None
    assert batch.positions is not None
    total = torch.zeros(())
    for row, runs in enumerate(Documents.of(batch.documents, batch.positions).runs()):
        assert len(runs) > 1  # else it is no packed window
        for run in runs:
            tokens, targets = (
                torch.from_numpy(values[row : row + 1, run])
                for values in (batch.inputs, batch.targets)
            )
            total = total + token_losses_sum(model(tokens), targets)
    loss = total / dataset.target_count(samples)
    loss.backward()
    return float(loss.detach()), model


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of one byte to a whole window."""
    folder = tmp_path_factory.mktemp("text")
    lengths = [7, 1, 9, 3, 16, 5, 2, 11, 8, 4, 13, 6] * 4
    for number, length in enumerate(lengths):
        content = bytes((number * 31 + place * place * 7) % 251 for place in range(length))
        (folder / f"{number:02d}.txt").write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def ranks(gangs: GangStarter, text: Path) -> list[dict[str, tuple[float, list[Part]]]]:
    return gangs.run(one_step, text, world_size=RANKS)


@pytest.mark.parametrize("name", CASES)
def test_each_document_has_the_loss_and_gradients_that_it_has_alone(
    ranks: list[dict[str, tuple[float, list[Part]]]], text: Path, name: str
) -> None:
    config = config_of(CASES[name], text)
    exact = config.precision is Precision.FP32
    loss, model = alone(config)
    close = pytest.approx(loss, rel=1e-6 if exact else 1e-2)
    assert sum(rank[name][0] for rank in ranks) == close
    parts = [part for rank in ranks for part in rank[name][1]]
    whole = dict(model.named_parameters())
    assert {part for part, _, _ in parts} == whole.keys()
    for part, box, values in parts:
        gradient = whole[part].grad
        assert gradient is not None
        cut = tuple(map(slice, box.offsets, map(sum, zip(box.offsets, box.shape, strict=True))))
        error = np.abs(values - gradient[cut].numpy()).max(initial=0)
        # of a key's bias it is zero but for rounding
        allowed = (1e-5 if exact else 5e-2) * max(float(gradient.abs().max()), 1e-6)
        assert error <= allowed, part
