"""Initial weights do not know how many ranks there are."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.models.initialize import initialize, initialize_slices
from drumline_trainer.models.llama import Llama
from drumline_trainer.sharding.boxes import Box
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import joined


def weights(placement: Placement, pipe: Connection, config: TrainerConfig) -> None:
    parallel_model, _ = joined(placement, config)
    initialize_slices(parallel_model.slices, config=config.model, seed=config.seed)
    pipe.send([(part.name, part.box, part.tensor.numpy()) for part in parallel_model.slices])
    dist.destroy_process_group()


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("tied", [True, False])
def test_any_number_of_ranks_starts_from_the_weights_of_an_unsharded_model(
    gangs: GangStarter, tmp_path: Path, tied: bool
) -> None:
    config = small(tmp_path, seed=7, model={"tied_embeddings": tied})
    plain = Llama(config.model)
    initialize(plain, seed=7)
    expected = {n: p.detach().numpy() for n, p in plain.named_parameters()}
    assert torch.isfinite(plain.embedding.weight).all()
    for world_size in (1, 2, 4):
        for parts in gangs.run(weights, config, world_size=world_size):
            assert {name for name, _, _ in parts} == expected.keys()
            for name, box, values in parts:
                whole = Box(offsets=(0,) * expected[name].ndim, shape=expected[name].shape)
                assert values.tobytes() == expected[name][box.slices_within(whole)].tobytes()
