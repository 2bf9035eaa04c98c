from __future__ import annotations

import time

import pytest

from drumline_trainer.config import TrainerConfig
from drumline_trainer.contract import RestoreTier
from drumline_trainer.heartbeat import Heartbeat
from drumline_trainer.metrics.pulse import Pulse
from drumline_trainer.metrics.reporter import Reporter
from drumline_trainer.placement import Placement


def test_step_seconds_count_the_steps_since_the_last_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run resumed after step 7 has trained 3 steps when it reports step 10, not 10."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    beats: list[Heartbeat] = []
    lines: list[str] = []
    reporter = Reporter(
        config=TrainerConfig(steps=25, log_every_steps=10),
        placement=Placement(rank=0, world_size=1),
        pulse=Pulse(beats.append, seconds=1e-9),
        write=lines.append,
        losses_file=None,
        peak_flops=None,
    )
    reporter.begin(7, tier=RestoreTier.STORAGE)
    for step in range(8, 26):
        now += 2.0
        reporter.finish_step(step, loss=1.5, gradient_norm=0.5)
        if step == 9:
            now += 60.0
            reporter.checkpointed(step=9, digest="d", seconds=60.0)
    reporter.done()

    assert [line.split("  ")[0] for line in lines] == ["step 10/25", "step 20/25", "step 25/25"]
    tokens = 16 * 128 / 2.0
    assert {line.split("  ")[3] for line in lines} == {f"{tokens / 1000:.2f}k tok/s"}
    assert (beats[-1].step_seconds, beats[-1].checkpoint_seconds) == (2.0, 60.0)
