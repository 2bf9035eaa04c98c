from __future__ import annotations

import json

import pytest

from drumline_trainer.heartbeat import Heartbeat, Phase


def beat(loss: float | None) -> Heartbeat:
    return Heartbeat(
        generation=1,
        attempt=0,
        rank=2,
        step=5,
        total_steps=10,
        phase=Phase.BACKWARD,
        loss=loss,
        tokens_per_second=100.0,
        checkpoint_step=4,
        checkpoint_digest="ab",
        time_seconds=1.5,
    )


def test_survives_a_line_of_json() -> None:
    assert Heartbeat.from_json(beat(2.5).to_json()) == beat(2.5)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_what_is_not_finite_is_null(loss: float) -> None:
    assert json.loads(beat(loss).to_json())["loss"] is None
