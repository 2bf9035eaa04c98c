"""The plain script that `make bench WHAT=trainer ARGS=steps` measures beside does what ours does.

Alone: the bench itself compares the losses of two ranks.
"""

from __future__ import annotations

from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from tests.gloo.gang import GangStarter
from tools.bench.trainer_steps import LOSS_TOLERANCE, PARALLELISM, beside, config_of

pytestmark = pytest.mark.extended(keep=3, of="numbers of ranks")

STEPS = 2


def beside_rank(placement: Placement, pipe: Connection, layout: str, config: TrainerConfig) -> None:
    made = beside(placement, layout, config)
    pipe.send((made.losses, made.loss_error))


@pytest.mark.parametrize("layout", PARALLELISM)
def test_our_step_and_the_plain_script_have_the_same_losses(
    gangs: GangStarter, tmp_path: Path, layout: str
) -> None:
    (tmp_path / "text.py").write_bytes(bytes(i * i * 7 % 251 for i in range(2_000)))
    config = config_of(layout, source=tmp_path, steps=STEPS)
    config = replace(
        config,
        model=replace(config.model, layers=2, hidden_size=64, ffn_size=96),
        data=replace(config.data, sequence_length=32),
        parallelism=replace(config.parallelism, tensor=1),
    )
    [(losses, error)] = gangs.run(beside_rank, layout, config, world_size=1)
    assert len(losses) == STEPS
    assert error <= LOSS_TOLERANCE, losses
