from __future__ import annotations

import pytest

from drumline_agent.api.prometheus import render
from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import Pause
from tests.unit.agent.settings_builder import agent_settings


def samples(board: RankStatusStore) -> dict[str, float]:
    lines = [line for line in render(board).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_only_an_idle_gang_has_seconds_and_only_its_leader_a_line() -> None:
    status = RankStatusStore(agent_settings())
    assert b"idle_seconds" not in render(status)
    for pause, line in (
        (Pause(seconds=64.0, usual_seconds=2.0), b"drumline_trainer_idle_seconds 0.0\n"),
        (Pause(seconds=90.04, usual_seconds=2.0), b"drumline_trainer_idle_seconds 90.0\n"),
    ):
        status.pause = pause
        assert line in render(status)


def test_a_waiting_pod_has_no_training_figures() -> None:
    assert samples(RankStatusStore(agent_settings())) == {
        "drumline_trainer_generation": 0,
        "drumline_trainer_attempt": 0,
    }


def test_the_lowest_local_rank_stands_for_the_pod() -> None:
    board = RankStatusStore(agent_settings())
    board.begin_attempt(generation=2, attempt=1, ranks=range(2, 4))
    for rank in (3, 2):
        board.record_heartbeat(
            Heartbeat(
                generation=2,
                attempt=1,
                rank=rank,
                step=rank * 10,
                total_steps=100,
                phase=Phase.CHECKPOINT,
                loss=1.5,
                gradient_norm=0.75,
                tokens_per_second=1e6,
                step_seconds=0.25,
                predicted_step_seconds=0.2,
                mfu=0.5,
                step_parts={"forward": 0.125, "all_reduce/tp": 0.0625},
                memory_bytes={"weights": 400},
                checkpoint_step=20,
                checkpoint_seconds=3.0,
                time_seconds=1.0,
            )
        )
    board.ranks_up[3] = False

    assert samples(board) == {
        "drumline_trainer_generation": 2,
        "drumline_trainer_attempt": 1,
        "drumline_trainer_step": 20,
        "drumline_trainer_total_steps": 100,
        "drumline_trainer_loss": 1.5,
        "drumline_trainer_gradient_norm": 0.75,
        "drumline_trainer_tokens_per_second": 1e6,
        "drumline_trainer_step_seconds": 0.25,
        "drumline_trainer_predicted_step_seconds": 0.2,
        "drumline_trainer_mfu_ratio": 0.5,
        'drumline_trainer_step_part_seconds{part="forward",axis=""}': 0.125,
        'drumline_trainer_step_part_seconds{part="all_reduce",axis="tp"}': 0.0625,
        'drumline_trainer_memory_bytes{category="weights"}': 400,
        'drumline_trainer_bound_share{bound="network"}': pytest.approx(1 / 3),
        "drumline_trainer_checkpoint_step": 20,
        "drumline_trainer_checkpoint_seconds": 3.0,
        'drumline_trainer_rank_up{rank="2"}': 1,
        'drumline_trainer_rank_up{rank="3"}': 0,
    }


def test_every_sample_has_its_help_and_type() -> None:
    board = RankStatusStore(agent_settings())
    board.begin_attempt(generation=1, attempt=0, ranks=range(1))
    text = render(board).decode()
    for name in {line.split(" ")[0].split("{")[0] for line in text.splitlines() if line[0] != "#"}:
        assert f"# HELP {name} " in text
        assert f"# TYPE {name} gauge\n" in text
