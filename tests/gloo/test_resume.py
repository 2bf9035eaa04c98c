"""A killed run goes on as if nothing had happened."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from drumline_agent.rank_protocol.heartbeat import Phase
from drumline_contract import ExitCode
from drumline_contract.config import TrainerConfig
from drumline_trainer.metrics.losses import read_losses
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.jobs import train_rank, train_until, train_with_death
from tests.gloo.stored import same_bits, trainer_state, whole_tensors

pytestmark = pytest.mark.extended(keep=2)


def undisturbed(
    gangs: GangStarter, config: TrainerConfig, folder: Path, *, world_size: int
) -> tuple[dict[int, float], Path]:
    gangs.run(train_rank, config, None, world_size=world_size, checkpoint_folder=folder)
    return read_losses(folder / "metrics.jsonl"), folder / f"step-{config.steps:08d}"


@pytest.mark.parametrize(
    ("step", "phase"),
    [
        pytest.param(2, Phase.FORWARD, id="before the first checkpoint"),
        pytest.param(5, Phase.DATA, id="between two steps"),
        pytest.param(6, Phase.BACKWARD, id="within a step"),
        pytest.param(8, Phase.CHECKPOINT, id="about to save"),
    ],
)
def test_killed_and_resumed_equals_undisturbed_bitwise(
    gangs: GangStarter, tmp_path: Path, step: int, phase: Phase
) -> None:
    config = small(tmp_path)
    losses, last = undisturbed(gangs, config, tmp_path / "whole", world_size=2)
    folder = tmp_path / "killed"
    with gangs.gang(
        train_until, config, step, phase, world_size=2, checkpoint_folder=folder
    ) as gang:
        assert gang.results() == ["reached"] * 2
        gang.kill()
    gangs.run(train_rank, config, None, world_size=2, checkpoint_folder=folder)
    resumed = read_losses(folder / "metrics.jsonl")
    assert {s: loss for s, loss in losses.items() if s in resumed} == resumed
    assert resumed.keys() >= set(range(config.steps - 1, config.steps + 1))
    assert same_bits(whole_tensors(folder / last.name), whole_tensors(last))
    assert trainer_state(folder / last.name) == trainer_state(last)


def test_a_model_of_the_same_shape_is_not_gone_on_with(gangs: GangStarter, tmp_path: Path) -> None:
    config = small(tmp_path, steps=1)
    asked = {"world_size": 2, "checkpoint_folder": tmp_path / "run"}
    gangs.run(train_rank, config, None, **asked)
    other = small(tmp_path, steps=2, model={"rope_theta": 5e5, "kv_heads": 1})
    with gangs.gang(train_rank, other, None, **asked) as gang:
        errors = [lines[0] for lines in gang.results()]
        assert gang.exit_codes() == [ExitCode.CONFIG] * 2
    assert all("model.rope_theta is 10000.0 there and 500000.0 here" in e for e in errors)


def test_a_restore_and_the_last_save_are_heard_of_piece_by_piece(
    gangs: GangStarter, tmp_path: Path
) -> None:
    asked = {"world_size": 1, "checkpoint_folder": tmp_path / "run"}
    config = small(tmp_path, steps=1)
    [fresh] = gangs.run(train_rank, config, None, **asked)
    [resumed] = gangs.run(train_rank, small(tmp_path, steps=2), None, **asked)
    files = len(list((tmp_path / "run" / "step-00000001").glob("*.safetensors")))
    tensors = len(whole_tensors(tmp_path / "run" / "step-00000001"))
    assert heard(fresh, Phase.RESTORING) > tensors // 3  # one for each weight that is initialized
    assert heard(resumed, Phase.RESTORING) > tensors + files
    assert heard(resumed, Phase.CHECKPOINT) > tensors


def heard(lines: list[str], phase: Phase) -> int:
    """How many heartbeats are of this phase."""
    beats = [json.loads(line) for line in lines if line.startswith("{")]
    return sum(beat.get("phase") == phase for beat in beats)


def test_bytes_are_not_trained_as_a_pretrained_models_tokens(
    gangs: GangStarter, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    config = small(tmp_path, model_from=str(tmp_path / "model"))
    with gangs.gang(train_rank, config, None, world_size=1) as gang:
        [[error]] = gang.results()
        assert gang.exit_codes() == [ExitCode.CONFIG]
    assert "is text, which is read as bytes" in error


def test_two_undisturbed_runs_are_bitwise_equal(gangs: GangStarter, tmp_path: Path) -> None:
    config = small(tmp_path)
    losses, last = undisturbed(gangs, config, tmp_path / "one", world_size=2)
    again, last_again = undisturbed(gangs, config, tmp_path / "two", world_size=2)
    assert losses == again
    assert same_bits(whole_tensors(last), whole_tensors(last_again))


@pytest.mark.parametrize("resumed_on", [1, 4])
def test_another_number_of_ranks_goes_on_with_the_same_losses(
    gangs: GangStarter, tmp_path: Path, resumed_on: int
) -> None:
    config = small(tmp_path)
    losses, last = undisturbed(gangs, config, tmp_path / "whole", world_size=2)
    folder = tmp_path / "changed"
    with gangs.gang(
        train_until, config, 7, Phase.DATA, world_size=2, checkpoint_folder=folder
    ) as gang:
        gang.results()
        gang.kill()
    gangs.run(train_rank, config, None, world_size=resumed_on, checkpoint_folder=folder)
    resumed = read_losses(folder / "metrics.jsonl")
    assert list(resumed) == list(losses)
    assert resumed == pytest.approx(losses, rel=1e-5)
    after, before = whole_tensors(folder / last.name), whole_tensors(last)
    for name, values in before.items():
        np.testing.assert_allclose(after[name], values, rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_finished_run_started_again_reports_its_result(
    gangs: GangStarter, tmp_path: Path
) -> None:
    config = small(tmp_path)
    folder = tmp_path / "checkpoints"
    losses, _ = undisturbed(gangs, config, folder, world_size=1)
    [lines] = gangs.run(train_rank, config, None, world_size=1, checkpoint_folder=folder)
    final = json.loads([line for line in lines if line.startswith("{")][-1])
    assert (final["phase"], final["step"], final["loss"]) == ("done", 10, losses[10])
    assert final["checkpoint_step"] == config.steps


def test_the_others_say_that_a_peer_was_lost(gangs: GangStarter, tmp_path: Path) -> None:
    with gangs.gang(train_with_death, small(tmp_path), 3, world_size=2) as gang:
        assert "peer" in gang.pipes[0].recv().lower()
        assert gang.exit_codes() == [ExitCode.PEER_LOST, -9]
