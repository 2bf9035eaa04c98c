from __future__ import annotations

import queue
import time
from dataclasses import replace

from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.messages import Quiesced, RankMessage
from drumline_trainer.metrics.heartbeat_sender import HeartbeatSender
from tests.patience import HANG_SECONDS

HOURS = 3600.0


def beat(phase: Phase) -> Heartbeat:
    return Heartbeat(
        generation=1,
        attempt=0,
        rank=0,
        step=1,
        total_steps=2,
        phase=phase,
        time_seconds=time.monotonic(),
    )


def give(sender: HeartbeatSender, heartbeat: Heartbeat, *, now: bool = False) -> None:
    """The figures of this heartbeat come with an older phase, as the reporter's do."""
    sender.send(
        replace(heartbeat, phase=Phase.STARTING, time_seconds=0.0),
        phase=heartbeat.phase,
        time_seconds=heartbeat.time_seconds,
        now=now,
    )


def test_the_newest_beat_is_delivered_though_nothing_follows_it() -> None:
    """A rank that waits in a collective is last heard where it waits."""
    heard: queue.SimpleQueue[RankMessage] = queue.SimpleQueue()
    sender = HeartbeatSender(heard.put, seconds=0.2)
    beats = [beat(phase) for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD)]
    for each in beats:
        give(sender, each)
    received = [heard.get()]
    while received[-1] != beats[-1]:  # those before it are left out, unless this machine is slow
        received.append(heard.get(timeout=HANG_SECONDS))
    assert received[0] == beats[0]
    assert heard.empty()


def test_beats_between_two_are_left_out() -> None:
    heard: list[RankMessage] = []
    sender = HeartbeatSender(heard.append, seconds=HOURS)
    first = beat(Phase.DATA)
    give(sender, first)
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        give(sender, beat(phase))
    assert heard == [first]


def test_a_beat_that_dates_something_is_never_left_out() -> None:
    heard: list[RankMessage] = []
    sender = HeartbeatSender(heard.append, seconds=HOURS)
    beats = [beat(phase) for phase in (Phase.STARTING, Phase.RESTORING, Phase.DATA)]
    for each in beats:
        give(sender, each, now=True)
    assert heard == beats


def test_an_event_comes_after_the_beat_before_it() -> None:
    heard: list[RankMessage] = []
    sender = HeartbeatSender(heard.append, seconds=HOURS)
    beats = [beat(phase) for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD)]
    for each in beats:
        give(sender, each)
    parked = Quiesced(generation=1, attempt=0, step=1, reason="")
    sender.send_event(parked)
    assert heard == [beats[0], beats[2], parked]
