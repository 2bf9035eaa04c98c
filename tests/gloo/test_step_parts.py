"""Every layout says what its steps wait for, and what memory is used for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from drumline_agent.rank_protocol.heartbeat import Heartbeat
from drumline_agent.rank_protocol.messages import RankMessage
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import TrainerConfig
from drumline_trainer.rank import run_rank
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter

pytestmark = pytest.mark.extended(keep=1)

LAYOUTS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "ddp": ({"data_parallel": "ddp"}, {"all_reduce/dp"}),
    "zero1": ({"data_parallel": "zero1"}, {"reduce_scatter/dp", "all_gather/dp"}),
    "fsdp": ({"data_parallel": "fsdp"}, {"all_gather/fsdp", "reduce_scatter/fsdp"}),
    "tensor": ({"tensor": 2}, {"all_gather/tp", "reduce_scatter/tp", "all_reduce/tp"}),
    "context": ({"context": 2, "data_parallel": "ddp"}, {"recv/cp", "all_reduce/dp"}),
    "pipeline": ({"pipeline": 2}, {"recv/pp", "all_reduce/tied"}),
    "expert": ({"expert": 2, "data_parallel": "ddp"}, {"all_to_all/ep", "all_reduce/dp"}),
}
"""Of two ranks; the parts that wait for others, beside what all steps have."""
PHASES = {"data", "forward", "backward", "optimizer", "other", "all_reduce/world"}


def train_all(placement: Placement, pipe: Connection, configs: list[TrainerConfig]) -> None:
    """One layout after the other; send each one's last heartbeat."""
    for attempt, config in enumerate(configs):
        words: list[RankMessage] = []
        run_rank(
            config=config,
            placement=replace(placement, attempt=attempt),
            heartbeat=words.append,
            write=lambda _: None,
        )
        last = words[-1]
        assert isinstance(last, Heartbeat)
        pipe.send((dict(last.step_parts or {}), dict(last.memory_bytes or {})))


def config_of(text: Path, name: str, parallelism: Mapping[str, Any]) -> TrainerConfig:
    return small(
        text,
        steps=4,
        log_every_steps=4,
        micro_batch_size=2,
        parallelism=parallelism,
        model={
            "kv_heads": 2,
            **({"experts": 4, "experts_per_token": 2} if name == "expert" else {}),
        },
    )


@pytest.fixture(scope="module")
def metrics_of(
    gangs: GangStarter, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    """By layout, of each rank."""
    text = tmp_path_factory.mktemp("parts")
    configs = [config_of(text, name, asked) for name, (asked, _) in LAYOUTS.items()]
    with gangs.gang(train_all, configs, world_size=2) as gang:
        return {name: gang.results() for name in LAYOUTS}


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_a_step_waits_for_is_told_apart(name: str, metrics_of: dict[str, list[Any]]) -> None:
    for parts, _ in metrics_of[name]:
        assert parts.keys() == PHASES | LAYOUTS[name][1], json.dumps(parts)
        assert all(seconds >= 0 for seconds in parts.values())
        assert parts["forward"] > 0 < parts["backward"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_memory_is_told_apart_by_what_it_is_for(
    name: str, metrics_of: dict[str, list[Any]]
) -> None:
    for _, memory in metrics_of[name]:
        assert memory["optimizer"] > 0
        assert memory["gradients"] > 0
        assert memory["weights"] > 0
        if name != "zero1":  # AdamW keeps two numbers for each that this rank updates
            assert memory["optimizer"] == pytest.approx(2 * memory["gradients"], rel=0.02)
