from __future__ import annotations

import json
from dataclasses import replace

import pytest

from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.messages import (
    NoticeSaved,
    PromptsContinued,
    Quiesced,
    RankError,
    RankMessage,
    SnapshotTaken,
    parse_rank_message,
)
from drumline_contract import RestoreTier, prompt_answers


def beat(loss: float | None) -> Heartbeat:
    return Heartbeat(
        generation=1,
        attempt=0,
        rank=2,
        step=5,
        total_steps=10,
        phase=Phase.BACKWARD,
        restored_from=RestoreTier.MEMORY,
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


@pytest.mark.parametrize(
    "word",
    [
        beat(2.5),
        Quiesced(generation=1, attempt=2, step=3, reason="closed\nby peer"),
        SnapshotTaken(step=3, generation=1, attempt=2, bytes=10, sha256="ab", seconds=0.5),
        NoticeSaved(notice="n", step=3, digest="ab"),
        NoticeSaved(notice="n", error="disk full"),
        PromptsContinued(answers=prompt_answers.encode(3, [('"a\\', "\n" * 400)])),
        RankError(error="ValueError: no"),
    ],
    ids=lambda word: type(word).__name__,
)
def test_every_message_is_a_single_line_that_can_be_parsed(word: RankMessage) -> None:
    line = word.to_json()
    assert "\n" not in line
    assert parse_rank_message(line) == word


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"parked": {"step": 1}}', '{"phase": "tea"}'])
def test_what_is_no_word_is_refused(line: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        parse_rank_message(line)


def test_positions_are_passed_in_the_order_of_a_step() -> None:
    def at(phase: Phase, step: int, micro_batch: int = 0) -> tuple[int, int, int]:
        return replace(beat(None), phase=phase, step=step, micro_batch=micro_batch).position

    passed = [
        at(Phase.STARTING, 7),  # after a loss: still says how far it had been
        at(Phase.RESTORING, 7),
        at(Phase.DATA, 6),
        at(Phase.FORWARD, 6),
        at(Phase.BACKWARD, 6),
        at(Phase.DATA, 6, 1),
        at(Phase.FORWARD, 6, 1),
        at(Phase.OPTIMIZER, 6, 1),
        at(Phase.SNAPSHOT, 7),
        at(Phase.CHECKPOINT, 7),
        at(Phase.DATA, 7),
        at(Phase.DONE, 7),
    ]
    assert passed == sorted(passed)
    assert len(set(passed)) == len(passed)
