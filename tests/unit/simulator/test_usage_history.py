from __future__ import annotations

import pytest

from drumline_simulator.engine.simulated_cluster import UsageHistory


def test_half_of_a_use_is_forgotten_after_a_half_life() -> None:
    history = UsageHistory(half_life_seconds=100, pools={"p": 10})
    history.change(queue="q", pool="p", gpus=5, now=0)
    history.change(queue="q", pool="p", gpus=-5, now=1)
    held = history.at(1)["q"]
    assert held == pytest.approx(0.5, rel=0.01)
    assert history.at(101)["q"] == pytest.approx(held / 2)


def test_a_steady_use_tends_to_its_share_times_the_mean_life() -> None:
    history = UsageHistory(half_life_seconds=100, pools={"p": 10, "r": 100})
    history.change(queue="q", pool="p", gpus=5, now=0)
    history.change(queue="q", pool="r", gpus=5, now=0)
    assert history.at(1e6)["q"] == pytest.approx(0.5 * 100 / 0.693147, rel=1e-4)


def test_looking_often_changes_nothing() -> None:
    once, often = (UsageHistory(half_life_seconds=60, pools={"p": 4}) for _ in range(2))
    for history in (once, often):
        history.change(queue="q", pool="p", gpus=3, now=0)
    for now in range(1, 100):
        often.at(now)
    assert often.at(100)["q"] == pytest.approx(once.at(100)["q"])
