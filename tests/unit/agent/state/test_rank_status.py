from __future__ import annotations

from dataclasses import replace

from drumline_agent.protocol.leader_orders import CommittedCheckpoint
from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import ComputePoint, StepPoint
from drumline_contract.step_series import RECENT_POINTS, decode
from tests.unit.agent.settings_builder import agent_settings


def heartbeat(checkpoint_step: int | None, digest: str = "") -> Heartbeat:
    return Heartbeat(
        generation=1,
        attempt=0,
        rank=0,
        step=9,
        total_steps=20,
        phase=Phase.FORWARD,
        checkpoint_step=checkpoint_step,
        checkpoint_digest=digest,
        time_seconds=1.0,
    )


def test_the_newest_checkpoint_ever_heard_of_outlives_attempts() -> None:
    board = RankStatusStore(agent_settings())
    board.record_heartbeat(heartbeat(5, "five"))
    board.begin_attempt(generation=1, attempt=1, ranks=range(1))
    assert board.newest_checkpoint == CommittedCheckpoint(step=5, digest="five")

    board.record_heartbeat(heartbeat(None))
    board.note_checkpoint(CommittedCheckpoint(step=4, digest="four"))
    assert board.newest_checkpoint == CommittedCheckpoint(step=5, digest="five")
    board.note_checkpoint(CommittedCheckpoint(step=6, digest="six"))
    assert board.newest_checkpoint == CommittedCheckpoint(step=6, digest="six")


def test_the_time_left_is_by_the_pace_of_this_attempt() -> None:
    board = RankStatusStore(agent_settings())
    assert board.progress.seconds_left is None
    board.record_heartbeat(heartbeat(None))
    board.record_heartbeat(replace(heartbeat(None), step=19))
    left = board.progress.seconds_left
    assert left is not None
    assert 0 <= left < 1
    board.begin_attempt(generation=1, attempt=1, ranks=range(1))
    board.record_heartbeat(heartbeat(None))
    assert board.progress.seconds_left is None


def test_compute_times_are_of_this_attempt_and_raise_no_version() -> None:
    board = RankStatusStore(agent_settings())
    board.record_heartbeat(heartbeat(None))
    version = board.version
    board.compute_points = (ComputePoint(step=20, ranks=3, ratios=(1.0, 1.0, 1.5)),)
    board.publish()
    assert board.status.progress.compute_by_rank == "step,ranks,compute\n20,3,55f"
    assert board.version == version
    board.begin_attempt(generation=1, attempt=1, ranks=range(1))
    board.record_heartbeat(heartbeat(None))
    assert not board.status.progress.compute_by_rank


def test_continued_prompts_outlive_an_attempt() -> None:
    board = RankStatusStore(agent_settings())
    board.answers = '[3,["a","b"]]'
    for attempt in (0, 1):
        board.begin_attempt(generation=1, attempt=attempt, ranks=range(1))
        board.record_heartbeat(heartbeat(None))
        assert board.status.progress.answers == '[3,["a","b"]]'


def test_the_series_is_of_this_attempt_and_of_steps_that_are_news() -> None:
    board = RankStatusStore(agent_settings())
    parts = {"forward": 2.0, "backward": 1.0, "all_gather/fsdp": 0.5, "checkpoint": 0.5}
    board.record_heartbeat(replace(heartbeat(5), step=10, step_parts=parts))
    board.record_heartbeat(replace(heartbeat(5), step=10, loss=4.25))
    board.record_heartbeat(replace(heartbeat(5), step=20, loss=4.0, step_seconds=0.25))
    board.record_heartbeat(replace(heartbeat(5), step=30, rank=1))
    version = board.version
    assert decode(board.progress.series) == (
        StepPoint(
            step=10,
            generation=1,
            checkpoint=5,
            loss=4.25,
            step_seconds=4.0,
            parts={"compute": 750, "data": 125, "saving": 125},
        ),
        StepPoint(step=20, generation=1, checkpoint=5, loss=4.0, step_seconds=0.25),
    )
    for step in range(21, 200):
        board.record_heartbeat(replace(heartbeat(5), step=step))
    assert len(decode(board.progress.series)) == RECENT_POINTS
    assert board.version == version
    board.begin_attempt(generation=1, attempt=1, ranks=range(2))
    assert not board.progress.series
    board.record_heartbeat(replace(heartbeat(5), step=9, phase=Phase.RESTORING))
    assert not board.progress.series
