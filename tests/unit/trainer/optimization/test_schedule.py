from __future__ import annotations

import pytest

from drumline_trainer.config import OptimizerConfig
from drumline_trainer.optimization.schedule import learning_rate

CONFIG = OptimizerConfig(learning_rate=1.0, min_learning_rate_ratio=0.1, warmup_steps=4)


def rates(total: int, config: OptimizerConfig = CONFIG) -> list[float]:
    return [learning_rate(step, total_steps=total, config=config) for step in range(total)]


def test_rises_in_a_line_and_falls_along_a_cosine() -> None:
    assert rates(9) == pytest.approx(
        [0.25, 0.5, 0.75, 1.0, 1.0, 0.1 + 0.9 * 0.8535534, 0.55, 0.1 + 0.9 * 0.1464466, 0.1]
    )


def test_without_warm_up_it_starts_at_the_peak() -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=0, min_learning_rate_ratio=0.0)
    assert rates(3, config) == pytest.approx([1.0, 0.5, 0.0])


def test_a_run_shorter_than_its_warm_up_never_passes_the_peak() -> None:
    assert rates(2) == pytest.approx([0.25, 0.5])
    assert learning_rate(50, total_steps=5, config=CONFIG) == pytest.approx(0.1)
