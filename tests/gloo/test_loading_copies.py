"""Weights of a folder are read once for all ranks that hold the same of them."""

from __future__ import annotations

import socket
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import HuggingFaceError, copies, export_hugging_face
from drumline_trainer.models.initialize import initialize
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice, named_weights
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import CPU, joined

pytestmark = pytest.mark.extended(keep=4, of="runs of ranks")


def built(config: TrainerConfig) -> nn.Module:
    """A model of one's own, the same on every rank."""
    model = build_on_meta(config.model).to_empty(device="cpu")
    initialize(model, seed=7)
    return model


def load_counted(
    placement: Placement, pipe: Connection, config: TrainerConfig, folder: Path, hosts: int
) -> None:
    """Load this rank's slices; send whether all are right, and the bytes that it read itself.

    Without hosts the last rank looks in a folder that is not there.
    """
    whole = placement.world_size if hosts else placement.world_size - 1
    hosts = hosts or placement.world_size
    socket.gethostname = lambda: str(placement.rank % hosts)
    parallel_model, _ = joined(placement, config)
    slices = parallel_model.slices
    read: list[int] = []
    load = copies.load_hugging_face

    def counted(path: Path, parts: list[TensorSlice], **how: Any) -> frozenset[str]:
        read.extend(part.tensor.nbytes for part in parts)
        return load(path, parts, **how)

    copies.load_hugging_face = counted  # type: ignore[assignment]
    try:
        copies.load_for_copies(
            folder / "missing" if placement.rank >= whole else folder,
            slices,
            config=config.model,
            device=CPU,
        )
    except HuggingFaceError as error:
        pipe.send(str(error))
    else:
        weights = dict(named_weights(built(config)))
        right = all(torch.equal(part.tensor, cut(weights[part.name], part.box)) for part in slices)
        pipe.send((right, sum(read)))
    dist.destroy_process_group()


def cut(whole: torch.Tensor, box: Box) -> torch.Tensor:
    return whole[box.slices_within(Box(offsets=(0,) * whole.dim(), shape=tuple(whole.shape)))]


@pytest.mark.parametrize(
    ("parallelism", "hosts", "times"),
    [
        pytest.param({"data_parallel": "ddp"}, 4, 1, id="copies on hosts of their own"),
        pytest.param({"data_parallel": "fsdp", "replicate": 2}, 4, 1, id="copies of shards"),
        pytest.param({"data_parallel": "ddp"}, 2, 2, id="ranks of a host use its page cache"),
    ],
)
def test_copies_share_the_reading(
    gangs: GangStarter, tmp_path: Path, parallelism: dict[str, Any], hosts: int, times: int
) -> None:
    config = small(tmp_path, parallelism=parallelism)
    folder = tmp_path / "model"
    model = built(config)
    export_hugging_face(dict(model.named_parameters()), config.model, folder)
    size = sum(weight.nbytes for weight in model.parameters())
    results = gangs.run(load_counted, config, folder, hosts, world_size=4)
    assert all(right for right, _ in results)
    assert sum(read for _, read in results) == times * size
    if times == 1:
        assert max(read for _, read in results) < 0.6 * size


def test_a_folder_that_one_rank_cannot_read_ends_all(gangs: GangStarter, tmp_path: Path) -> None:
    config = small(tmp_path, parallelism={"data_parallel": "ddp"})
    folder = tmp_path / "model"
    export_hugging_face(dict(built(config).named_parameters()), config.model, folder)
    errors = gangs.run(load_counted, config, folder, 0, world_size=2)
    assert all("missing" in error for error in errors)
