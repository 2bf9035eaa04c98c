from __future__ import annotations

import pytest

from drumline_trainer.agent.verdict import Failed, Succeeded, Suspected, describe, judge

CASES = {
    "nobody has ended": ({}, None),
    "some are done": ({0: 0}, None),
    "all are done": ({1: 0, 0: 0}, Succeeded()),
    "a rank raised": ({1: 1}, Failed(exit_code=1, reason="exit code 1 (APPLICATION)", rank=1)),
    "a rank was killed": ({0: -9}, Failed(exit_code=137, reason="killed by SIGKILL", rank=0)),
    "a rank lost its peers": ({0: 75}, Suspected()),
    "a rank lost its peers, another is done": (
        {0: 75, 1: 0},
        Failed(exit_code=75, reason="lost its peers", rank=0),
    ),
    "all lost their peers": ({1: 75, 0: 75}, Failed(exit_code=75, reason="lost its peers", rank=1)),
    "the culprit came after its victim": (
        {0: 75, 1: 65},
        Failed(exit_code=65, reason="exit code 65 (CORRUPT_CHECKPOINT)", rank=1),
    ),
    "the first of two culprits": ({1: 3, 0: 64}, Failed(exit_code=3, reason="exit code 3", rank=1)),
}


@pytest.mark.parametrize(("exits", "verdict"), CASES.values(), ids=CASES)
def test_two_ranks_are_judged(exits: dict[int, int], verdict: object) -> None:
    assert judge(exits, ranks=2) == verdict


def test_an_unknown_signal_has_a_number() -> None:
    assert describe(-63) == "killed by signal 63"
