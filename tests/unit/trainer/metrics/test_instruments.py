from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from drumline_agent.rank_protocol.heartbeat import Phase
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.config import ConfigError, TrainerConfig
from drumline_trainer.metrics.instruments import Instruments
from drumline_trainer.metrics.step_timer import StepTimer, observe, step_part
from tests.unit.trainer.metrics.test_sinks import record
from tests.unit.trainer.metrics.test_step_timer import Clock


@pytest.fixture(autouse=True)
def _unobserved() -> Iterator[None]:
    yield
    observe()


def opened(folder: Path | None, *, rank: int = 0, **config: Any) -> Instruments:
    return Instruments.open(
        TrainerConfig.from_dict(config),
        placement=Placement(rank=rank, world_size=2, generation=1, checkpoint_folder=folder),
        device=torch.device("cpu"),
    )


def test_figures_lie_beside_the_checkpoints_and_are_written_by_rank_0(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path, rank=1)
    for instruments in (first, second):
        instruments.publish(record(10))
    assert len((tmp_path / "metrics" / "steps.jsonl").read_text().splitlines()) == 1
    second.rejoin(Placement(rank=0, world_size=1))
    first.rejoin(Placement(rank=1, world_size=2))
    for instruments in (first, second):
        instruments.publish(record(20))
    assert len((tmp_path / "metrics" / "steps.jsonl").read_text().splitlines()) == 2


def test_a_folder_of_its_own_or_none(tmp_path: Path) -> None:
    opened(tmp_path / "a", metrics={"folder": str(tmp_path / "b")}).publish(record(10))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["steps.jsonl"]
    assert (tmp_path / "b" / "steps.jsonl").exists()
    opened(None).publish(record(10))
    with pytest.raises(ConfigError):
        opened(None, metrics={"tensorboard": True})


def test_a_disk_that_fails_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    instruments = opened(tmp_path / "file" / "x")
    instruments.publish(record(10))
    instruments.publish(record(20))
    instruments.dump()
    assert [entry.message.partition(":")[0] for entry in caplog.records] == [
        "JsonLines takes no more figures",
        "no record of what this rank did",
    ]


def test_the_flight_record_says_where_the_rank_waited_and_not_how_it_left(tmp_path: Path) -> None:
    instruments = opened(tmp_path)
    instruments.begin(7)
    instruments.enter(Phase.BACKWARD)
    wait = step_part("all_reduce", "dp")
    wait.__enter__()
    for _ in range(2):
        with instruments.dump_around():
            wait.__exit__()
    for thread in threading.enumerate():
        if thread.name == "flight record":
            thread.join()
    dump = json.loads((tmp_path / "metrics/flight/1.0/rank-0.json").read_bytes())
    assert (dump["step"], [event["name"] for event in dump["open"]]) == (
        7,
        ["backward", "all_reduce/dp"],
    )


def test_a_run_has_one_trace_of_each_rank(tmp_path: Path) -> None:
    instruments = opened(tmp_path, rank=1, profile={"start_step": 1, "steps": 1})
    instruments.begin(0)
    for step in (1, 2, 3):
        instruments.enter(Phase.FORWARD)
        instruments.finish_step(step)
    instruments.close()
    traces = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")]
    assert traces == ["metrics/traces/step-00000001/rank-1.json"]


def test_the_bottleneck_of_a_run_leaves_out_its_first_window() -> None:
    clock = Clock()
    instruments = Instruments(timer=StepTimer(clock))
    instruments.begin(0)
    for seconds in (100.0, 2.0, 3.0):
        clock.now += seconds
        instruments.collect(steps=1)
    assert instruments.totals == {"other": 5.0}
