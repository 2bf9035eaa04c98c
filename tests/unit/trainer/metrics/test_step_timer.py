from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch

from drumline_contract.layout import Axis
from drumline_trainer.metrics.step_timer import StepTimer, observe, per_step, step_part


class Clock:
    """Stands still unless it is moved; may know what it shows only later, as a GPU's events do."""

    def __init__(self) -> None:
        self.now = 0.0
        self.known_until = float("inf")

    def mark(self) -> float:
        return self.now

    def seconds(self, earlier: float, later: float) -> float | None:
        return later - earlier if later <= self.known_until else None


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timer(clock: Clock) -> Any:
    timer = StepTimer(clock)
    observe(timer)
    timer.restart()
    yield timer
    observe()


def test_parts_sum_to_the_step_and_a_collective_is_taken_out_of_its_phase(
    clock: Clock, timer: StepTimer
) -> None:
    for _ in range(2):
        clock.now += 0.25  # the loop itself
        timer.enter("data")
        clock.now += 1
        timer.enter("forward")
        clock.now += 2
        with step_part("all_gather", Axis.FSDP):
            clock.now += 0.5
            with step_part("all_reduce", Axis.TENSOR):
                clock.now += 0.125
        clock.now += 2
        timer.enter("backward")
        clock.now += 8
        timer.enter("optimizer")
        with step_part("all_reduce", Axis.TENSOR):
            clock.now += 0.125
        clock.now += 1
        timer.enter("other")
    parts = per_step(timer.take(), steps=2)
    assert parts == {
        "backward": 8,
        "forward": 4,
        "data": 1,
        "optimizer": 1,
        "all_gather/fsdp": 0.5,
        "all_reduce/tp": 0.25,
        "other": 0.25,
    }
    assert sum(parts.values()) == clock.now / 2


def test_what_is_not_known_yet_counts_in_the_next_window(clock: Clock, timer: StepTimer) -> None:
    timer.enter("forward")
    clock.now, clock.known_until = 3.0, 3.0
    timer.enter("backward")
    clock.now = 5.0
    assert timer.take() == {"other": 0.0, "forward": 3.0}
    clock.known_until = 6.0
    clock.now = 6.0
    assert timer.take() == {"backward": 3.0}


def test_a_collective_that_fails_is_over(clock: Clock, timer: StepTimer) -> None:
    timer.enter("backward")
    with suppress(ConnectionError), step_part("all_reduce", "dp"):
        clock.now += 1
        raise ConnectionError
    clock.now += 2
    assert timer.take() == {"other": 0.0, "backward": 2.0, "all_reduce/dp": 1.0}


def test_marks_are_read_as_they_become_many(clock: Clock, timer: StepTimer) -> None:
    for _ in range(5000):
        timer.enter("forward")
        clock.now += 1
    assert len(timer._marks) < 1000
    assert timer.take()["forward"] == 5000


def test_nothing_is_told_while_a_block_is_compiled(clock: Clock, timer: StepTimer) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        with step_part("all_reduce", "tp"):
            return x * 2

    compiled = torch.compile(block, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    clock.now += 1
    assert timer.take() == {"other": 1.0}


def test_without_an_observer_a_part_is_nothing() -> None:
    with step_part("all_reduce", "tp"):
        pass
