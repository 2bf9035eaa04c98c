from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.messages import parse_rank_message
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import RestoreTier
from drumline_contract.config import TrainerConfig
from drumline_contract.layout import Layout
from drumline_trainer.metrics.heartbeat_sender import HeartbeatSender
from drumline_trainer.metrics.instruments import Instruments
from drumline_trainer.metrics.reporter import RunReporter
from drumline_trainer.metrics.step_timer import StepTimer
from tests.texts import missing
from tests.unit.trainer.metrics.test_step_timer import Clock


def test_step_seconds_count_the_steps_since_the_last_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run resumed after step 7 has trained 3 steps when it reports step 10, not 10."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    beats: list[Heartbeat] = []
    lines: list[str] = []
    reporter = RunReporter(
        config=TrainerConfig(steps=25, log_every_steps=10),
        placement=Placement(rank=0, world_size=1),
        heartbeats=HeartbeatSender(beats.append, seconds=1e-9),
        write=lines.append,
        losses_file=None,
        peak_flops=None,
    )
    reporter.begin(7, tier=RestoreTier.STORAGE)
    for step in range(8, 26):
        now += 2.0
        reporter.finish_step(step, losses={step: 1.5}, gradient_norm=0.5)
        if step == 9:
            with reporter.excluded_from_step_time():
                now += 60.0
        if step == 13:  # committed in another window than it was copied in
            reporter.checkpointed(step=9, digest="d", seconds=60.0)
    reporter.done()

    assert lines.pop().startswith("bottleneck: host-bound")
    assert [line.split("  ")[0] for line in lines] == ["step 10/25", "step 20/25", "step 25/25"]
    tokens = 16 * 128 / 2.0
    assert {line.split("  ")[3] for line in lines} == {f"{tokens / 1000:.2f}k tok/s"}
    assert (beats[-1].step_seconds, beats[-1].checkpoint_seconds) == (2.0, 60.0)


def test_a_long_phase_that_moves_says_so_as_often_as_the_rate_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    beats: list[Heartbeat] = []
    reporter = RunReporter(
        config=TrainerConfig(heartbeat_seconds=2.0),
        placement=Placement(rank=0, world_size=2),
        heartbeats=HeartbeatSender(beats.append, seconds=2.0),
        write=lambda _: None,
        losses_file=None,
        peak_flops=None,
    )
    reporter.enter(Phase.RESTORING)
    for _ in range(100):  # 400 s of a restore, in pieces
        now += 4.0
        for _ in range(3):
            reporter.progressed()
    assert [beat.time_seconds for beat in beats] == [1000.0 + 4 * n for n in range(101)]
    assert {beat.position for beat in beats} == {beats[0].position}


def trained(
    *,
    rank: int = 0,
    log_ranks: str = "first",
    show: Callable[[str], None] | None = None,
    layout: Layout | None = None,
) -> tuple[list[Heartbeat], list[str]]:
    """Two steps of a rank, on a clock that only this test moves."""
    beats: list[Heartbeat] = []
    lines: list[str] = []
    clock = Clock()
    config = {"steps": 2, "log_every_steps": 1, "metrics": {"log_ranks": log_ranks}}
    reporter = RunReporter(
        config=TrainerConfig.from_dict(config),
        placement=Placement(rank=rank, world_size=4),
        heartbeats=HeartbeatSender(beats.append, seconds=1e-9),
        write=lines.append,
        show=show,
        losses_file=None,
        peak_flops=None,
        instruments=Instruments(timer=StepTimer(clock)),
    )
    model = nn.Linear(2, 2, bias=False)
    reporter.assembled(
        reporter.config, layout=layout or Layout(shard=4), stages=[model], state=[torch.zeros(2, 2)]
    )
    reporter.begin(0, tier=RestoreTier.INITIAL)
    for step in (1, 2):
        for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
            reporter.enter(phase)
            clock.now += 4.0 if phase is Phase.DATA else 1.0
            if phase is Phase.BACKWARD:
                model(torch.ones(1, 2)).sum().backward()
            if phase is Phase.OPTIMIZER:
                reporter.count_gradients([parameter.grad for parameter in model.parameters()])
        reporter.finish_step(step, losses={step: 1.0}, gradient_norm=1.0, learning_rate=0.1)
    reporter.done()
    return beats, lines


def test_heartbeats_carry_step_parts_and_memory() -> None:
    beats, lines = trained()
    assert beats[-1].step_parts == {
        "data": 4.0,
        "backward": 1.0,
        "forward": 1.0,
        "optimizer": 1.0,
        "other": 0.0,
    }
    assert (beats[-1].measured_step, beats[-1].stage) == (2, 0)
    assert beats[-1].memory_bytes is not None
    kept = {name: beats[-1].memory_bytes[name] for name in ("weights", "gradients", "optimizer")}
    assert kept == {"weights": 16, "gradients": 16, "optimizer": 16}
    assert parse_rank_message(beats[-1].to_json()) == beats[-1]
    assert not missing(lines[-1], "57%")


def test_heartbeats_say_which_stage_of_the_pipeline_was_measured() -> None:
    layout = Layout(shard=2, pipeline=2)
    stages = [trained(rank=rank, layout=layout)[0][-1].stage for rank in range(4)]
    assert stages == [0, 0, 1, 1]


def test_rank_0_prints_unless_all_are_to() -> None:
    assert trained(rank=3)[1] == []
    assert len(trained(rank=3, log_ranks="all")[1]) == 3


def test_progress_goes_where_it_is_shown() -> None:
    shown: list[str] = []
    lines = trained(show=shown.append)[1]
    assert [line.partition("  ")[0] for line in shown] == ["step 1/2", "step 2/2"]
    assert [line.partition(":")[0] for line in lines] == ["bottleneck"]


def test_what_limits_a_run_is_said_while_it_goes_on_and_when_that_changes() -> None:
    lines: list[str] = []
    clock = Clock()
    reporter = RunReporter(
        config=TrainerConfig(steps=9, log_every_steps=1),
        placement=Placement(rank=0, world_size=1),
        heartbeats=None,
        write=lines.append,
        show=lambda _: None,
        losses_file=None,
        peak_flops=None,
        instruments=Instruments(timer=StepTimer(clock)),
    )
    reporter.begin(0, tier=RestoreTier.INITIAL)
    for step in range(1, 10):
        for phase in (Phase.DATA, Phase.FORWARD):
            reporter.enter(phase)
            clock.now += 1.0 if phase is Phase.FORWARD else 0.0 if step < 7 else 3.0
        reporter.finish_step(step, losses={step: 1.0}, gradient_norm=1.0)
    reporter.done()
    assert [line.partition("-bound")[0] for line in lines] == [
        "so far compute",
        "so far data",
        "bottleneck: data",
    ]
