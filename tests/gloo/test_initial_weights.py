"""Initial weights do not know how many ranks there are."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from drumline_trainer.config import TrainerConfig
from drumline_trainer.models.initialize import initialize
from drumline_trainer.models.llama import Llama
from drumline_trainer.placement import Placement
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import joined_model


def whole_weights(placement: Placement, pipe: Connection, config: TrainerConfig) -> None:
    model = joined_model(placement, config.model, precision=config.precision)
    initialize(model, seed=config.seed)
    whole = {name: p.detach().full_tensor().numpy() for name, p in model.named_parameters()}
    pipe.send({name: values.tobytes() for name, values in whole.items()})
    dist.destroy_process_group()


@pytest.mark.parametrize("tied", [True, False])
def test_any_number_of_ranks_starts_from_the_weights_of_an_unsharded_model(
    gangs: GangStarter, tmp_path: Path, tied: bool
) -> None:
    config = small(tmp_path, seed=7, model={"tied_embeddings": tied})
    plain = Llama(config.model)
    initialize(plain, seed=7)
    expected = {n: p.detach().numpy().tobytes() for n, p in plain.named_parameters()}
    assert torch.isfinite(plain.embedding.weight).all()
    for world_size in (1, 2, 4):
        for weights in gangs.run(whole_weights, config, world_size=world_size):
            assert weights == expected
