from __future__ import annotations

import pytest

from drumline_agent.leader.checkpoint_parts import (
    KEPT_STEPS,
    CheckpointParts,
    CompleteCheckpoint,
    FailedCheckpoint,
)
from drumline_client.wire import PartBegun, PartSaved, StepReport


def at(step: int) -> StepReport:
    return StepReport(at=0.0, phase="training", saves=True, step=step)


def test_every_rank_has_saved() -> None:
    parts = CheckpointParts(world_size=2)
    assert parts.handle(1, PartSaved(step=4, path="/c/1")) is None
    complete = parts.handle(0, PartSaved(step=4, path="/c/0"))
    assert complete == CompleteCheckpoint(step=4, path="/c/0")


def test_a_rank_that_goes_on_has_no_part() -> None:
    parts = CheckpointParts(world_size=2)
    assert parts.handle(0, PartSaved(step=4, path="/c")) is None
    assert parts.handle(1, at(4)) is None
    assert parts.handle(1, at(5)) == CompleteCheckpoint(step=4, path="/c")


def test_a_part_in_the_background_is_waited_for() -> None:
    parts = CheckpointParts(world_size=2)
    parts.handle(1, PartBegun(step=4))
    parts.handle(1, at(7))
    assert parts.handle(0, PartSaved(step=4, path="/c")) is None
    assert parts.handle(1, PartSaved(step=4)) == CompleteCheckpoint(step=4, path="/c")


def test_a_checkpoint_without_a_saved_part_is_none() -> None:
    parts = CheckpointParts(world_size=1)
    parts.handle(0, PartBegun(step=4))
    assert parts.handle(0, at(9)) is None


def test_a_part_that_fails_fails_the_checkpoint_and_not_the_next() -> None:
    parts = CheckpointParts(world_size=2)
    parts.handle(0, PartSaved(step=4, path="/c"))
    failed = parts.handle(1, PartSaved(step=4, error="disk full"))
    assert failed == FailedCheckpoint(step=4, rank=1, error="disk full")
    assert parts.handle(1, at(5)) is None
    parts.handle(0, PartSaved(step=8, path="/d"))
    assert parts.handle(1, PartSaved(step=8)) == CompleteCheckpoint(step=8, path="/d")


@pytest.mark.parametrize("first", [0, 1])
def test_parts_that_come_after_a_failed_one_are_no_checkpoint(first: int) -> None:
    parts = CheckpointParts(world_size=3)
    said: dict[int, PartSaved] = {0: PartSaved(step=4, path="/c"), 1: PartSaved(step=4, error="x")}
    outcomes = [parts.handle(rank, said[rank]) for rank in (first, 1 - first)]
    assert FailedCheckpoint(step=4, rank=1, error="x") in outcomes
    assert parts.handle(2, PartSaved(step=4, path="/c")) is None
    assert [parts.handle(rank, at(5)) for rank in range(3)] == [None] * 3


def test_a_part_that_is_saved_once_more_completes_the_checkpoint() -> None:
    parts = CheckpointParts(world_size=1)
    assert parts.handle(0, PartSaved(step=4, error="busy")) is not None
    assert parts.handle(0, PartSaved(step=4, path="/c")) == CompleteCheckpoint(step=4, path="/c")


def test_an_older_checkpoint_that_ends_later_is_of_no_use() -> None:
    parts = CheckpointParts(world_size=1)
    parts.handle(0, PartBegun(step=4))
    assert parts.handle(0, PartSaved(step=8, path="/d")) == CompleteCheckpoint(step=8, path="/d")
    assert parts.handle(0, PartSaved(step=4, path="/c")) is None
    assert parts.handle(0, PartSaved(step=4, error="late")) is None


def test_what_is_under_way_is_bounded() -> None:
    parts = CheckpointParts(world_size=2)
    for step in range(1, KEPT_STEPS + 3):
        parts.handle(0, PartSaved(step=step, path=str(step)))
    assert parts.handle(1, PartSaved(step=1)) is None
    newest = KEPT_STEPS + 2
    complete = parts.handle(1, PartSaved(step=newest))
    assert complete == CompleteCheckpoint(step=newest, path=str(newest))
    assert parts.handle(7, PartSaved(step=99, path="/x")) is None
