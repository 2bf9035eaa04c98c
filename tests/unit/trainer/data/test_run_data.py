from __future__ import annotations

from pathlib import Path

import pytest

from drumline_contract.config import ConfigError, TrainerConfig
from drumline_trainer.data.run_data import open_run_data, with_steps_of_epochs


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """130 tokens: 8 windows of 16."""
    (tmp_path / "a.py").write_bytes(b"x" * 130)
    return tmp_path


def configured(text: Path, *, epochs: float | None, **changes: object) -> TrainerConfig:
    data = {"source": str(text), "sequence_length": 16}
    return TrainerConfig.from_dict(
        {"data": data, "epochs": epochs, "steps": 7, "global_batch_size": 3, **changes}
    )


@pytest.mark.parametrize(
    ("epochs", "steps"), [(None, 7), (1, 3), (3.0, 8), (0.1, 1), (1e6, 2666667)]
)
def test_epochs_say_how_many_steps_there_are(text: Path, epochs: float | None, steps: int) -> None:
    config = configured(text, epochs=epochs)
    decided = with_steps_of_epochs(config, open_run_data(config).training)
    assert (decided.steps, decided.epochs) == (steps, epochs)
    assert TrainerConfig.from_dict(decided.to_dict()) == decided


def test_held_out_windows_are_of_no_epoch(text: Path) -> None:
    config = configured(text, epochs=3, evaluation={"every_steps": 5, "share": 0.5})
    training = open_run_data(config).training
    assert training.epoch_samples == 4
    assert with_steps_of_epochs(config, training).steps == 4


def test_more_steps_than_a_run_may_have_are_refused(text: Path) -> None:
    config = configured(text, epochs=1e12)
    with pytest.raises(ConfigError, match="epochs: 1e\\+12 are"):
        with_steps_of_epochs(config, open_run_data(config).training)
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ConfigError, match="epochs"):
            configured(text, epochs=wrong)
