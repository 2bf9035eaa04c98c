from __future__ import annotations

from dataclasses import replace

from drumline_trainer.agent.protocol.leader_orders import CommittedCheckpoint
from drumline_trainer.agent.state.rank_status import RankStatusStore
from drumline_trainer.rank_protocol.heartbeat import Heartbeat, Phase
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
