from __future__ import annotations

from pathlib import Path

from drumline_trainer.metrics.losses import append_losses, read_losses


def test_a_later_line_counts_and_a_cut_one_does_not(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_losses(path, {1: 5.5, 2: 5.25, 3: 5.0})
    path.write_bytes(path.read_bytes()[:-6])
    assert read_losses(path) == {1: 5.5, 2: 5.25}
    append_losses(path, {2: 5.125, 3: 4.0})
    assert read_losses(path) == {1: 5.5, 2: 5.125, 3: 4.0}


def test_losses_come_back_to_the_last_bit(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_losses(path, {1: 0.1 + 0.2})
    assert read_losses(path) == {1: 0.1 + 0.2}


def test_a_loss_that_is_not_finite_is_still_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_losses(path, {1: float("nan"), 2: float("inf"), 3: 1.0})
    assert path.read_text().count("null") == 2
    assert read_losses(path) == {1: None, 2: None, 3: 1.0}
