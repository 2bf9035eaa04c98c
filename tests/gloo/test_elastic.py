"""The number of ranks may change between steps: the samples and, but for rounding, the run do not.

Stated tolerance: losses within 1e-5, weights within 1e-3 (relative) of the undisturbed run. Sums of
more or fewer parts round differently, and nothing else differs; without dropout, whose masks are
drawn by each rank.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.metrics.losses import read_losses
from drumline_trainer.parallelism.batch_shard import MicroBatch
from drumline_trainer.rank import run_rank
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank
from tests.gloo.stored import whole_tensors

pytestmark = pytest.mark.extended(keep=4, of="runs of ranks")

STEPS = 10


def config_of(text: Path, **changes: Any) -> TrainerConfig:
    """Two samples at a time, whatever the number of ranks."""
    # waited for: a run that is stopped once a step is saved has used no sample of the next one
    checkpoint = {"every_steps": 1, "keep": 100, "asynchronous": False}
    asked = {"global_batch_size": 8, "micro_batch_size": 2, "checkpoint": checkpoint}
    return small(text, steps=STEPS, **{**asked, **changes})


def train_to(placement: Placement, pipe: Connection, config: TrainerConfig, last_step: int) -> None:
    """Train until this step is saved; send the samples of every step."""
    used: list[tuple[int, int]] = []
    step = 0
    on = MicroBatch.on

    def counted(self: MicroBatch, device: torch.device) -> tuple[Tensor, Tensor]:
        assert len(self.samples) <= 2
        used.extend((step, sample) for sample in self.samples)
        return on(self, device)

    class EnoughError(Exception):
        pass

    def watch(word) -> None:  # noqa: ANN001 - any word
        nonlocal step
        step = getattr(word, "step", step)
        if getattr(word, "checkpoint_step", None) == last_step != STEPS:
            raise EnoughError

    MicroBatch.on = counted
    with suppress(EnoughError):
        run_rank(config=config, placement=placement, heartbeat=watch, write=lambda _: None)
    pipe.send(json.dumps(used))


def test_four_two_and_four_ranks_use_every_sample_once(gangs: GangStarter, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    gangs.run(train_rank, config, None, world_size=4, checkpoint_folder=tmp_path / "whole")
    folder = tmp_path / "changing"
    used: Counter[tuple[int, int]] = Counter()
    for world_size, last_step in ((4, 3), (2, 7), (4, STEPS)):
        completed = gangs.run(
            train_to, config, last_step, world_size=world_size, checkpoint_folder=folder
        )
        used.update(tuple(pair) for line in completed for pair in json.loads(line))
    assert used == Counter((n // 8, n) for n in range(8 * STEPS))
    losses = read_losses(folder / "metrics.jsonl")
    assert list(losses) == list(range(1, STEPS + 1))
    assert losses == pytest.approx(read_losses(tmp_path / "whole" / "metrics.jsonl"), rel=1e-5)
    name = f"step-{STEPS:08d}"
    after, before = (whole_tensors(tmp_path / run / name) for run in ("changing", "whole"))
    for tensor, values in before.items():
        np.testing.assert_allclose(after[tensor], values, rtol=1e-3, atol=1e-5, err_msg=tensor)


@pytest.mark.parametrize("size", [1, 3])
def test_parts_of_a_share_weigh_what_they_hold(
    gangs: GangStarter, tmp_path: Path, size: int
) -> None:
    """A share of 5 in parts of at most 3 is 2 + 3."""
    curves = []
    for asked in (None, size):
        run = tmp_path / str(asked)
        config = config_of(tmp_path, global_batch_size=10, micro_batch_size=asked)
        gangs.run(train_rank, config, None, world_size=2, checkpoint_folder=run)
        curves.append(read_losses(run / "metrics.jsonl"))
    assert curves[1] == pytest.approx(curves[0], rel=1e-5)
    assert curves[1] != curves[0]  # it did add up other parts
