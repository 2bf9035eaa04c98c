from __future__ import annotations

from typing import Any

import pytest
import torch

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_contract.layout import Layout
from drumline_trainer.compiled_kernels.program import Program


def program(
    *, rank: int = 0, ranks: int = 1, pod: int = 1, pipeline: int = 1, **changes: Any
) -> Program:
    config = TrainerConfig.from_dict({"parallelism": {"pipeline": pipeline}} | changes)
    return Program.of(
        config,
        Layout.of(config.parallelism, world_size=ranks),
        placement=Placement(
            rank=rank, world_size=ranks, local_rank=rank % pod, local_world_size=pod
        ),
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"layers": 3}},
        {"precision": "bf16"},
        {"data": {"sequence_length": 64}},
        {"micro_batch_size": 2},
        {"memory": {"recompute": "full"}},
    ],
)
def test_what_decides_the_kernels_is_in_the_name(changes: dict[str, Any]) -> None:
    assert program(**changes).digest != program().digest


def test_what_does_not_decide_them_is_not() -> None:
    longer = program(steps=7, seed=3, optimizer={"learning_rate": 0.1}, log_every_steps=3)
    assert longer == program()


def test_the_first_pod_of_each_stage_keeps_them() -> None:
    """Two stages on two pods of two ranks each."""
    ranks = [program(rank=rank, ranks=8, pod=2, pipeline=2) for rank in range(8)]
    assert [rank for rank, of in enumerate(ranks) if of.writes] == [0, 4]
    assert [of.first_stage for of in ranks] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert len({of.name for of in ranks}) == 2
    assert len({of.digest for of in ranks}) == 1


def test_a_pod_with_several_stages_keeps_them_together() -> None:
    ranks = [program(rank=rank, ranks=8, pod=4, pipeline=4) for rank in range(8)]
    assert [(of.first_stage, of.last_stage) for of in ranks] == [(0, 1)] * 4 + [(2, 3)] * 4
    assert [rank for rank, of in enumerate(ranks) if of.writes] == [0, 4]
