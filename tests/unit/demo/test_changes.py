"""What the demo says of two successive states of a job."""

from __future__ import annotations

from typing import Any

import pytest

from tools.demo.changes import glance, log_line, news

RACKS = {"node-0": "rack-0", "node-1": "rack-0", "node-2": "rack-1"}
WAITING = {"phase": "Pending", "reason": "QuotaExhausted", "message": "needs 4; held by a/b (4)"}
PLACED: dict[str, Any] = {
    "phase": "Starting",
    "reason": "StartingPods",
    "generation": 1,
    "assignment": {"prefix": "node-", "nodes": ["0", "1"]},
}
RUNNING = PLACED | {"phase": "Running", "reason": "Training", "step": 5, "totalSteps": 9}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "a new job without status": ({}, {}, []),
    "a job that waits": ({}, WAITING, ["Pending, QuotaExhausted: needs 4; held by a/b (4)"]),
    "still waiting": (WAITING, WAITING, []),
    "waiting for somebody else": (
        WAITING,
        WAITING | {"message": "needs 4; held by a/c (4)"},
        ["Pending, QuotaExhausted: needs 4; held by a/c (4)"],
    ),
    "placed": (
        WAITING,
        PLACED,
        ["placed: node-0, node-1 in rack-0", "Starting, StartingPods"],
    ),
    "placed over two racks": (
        PLACED,
        PLACED | {"generation": 2, "assignment": {"prefix": "node-", "nodes": ["1", "2"]}},
        ["placed: node-1, node-2 in rack-0, rack-1"],
    ),
    "running": (PLACED, RUNNING, ["Running"]),
    "a step further": (RUNNING, RUNNING | {"step": 6}, []),
    "done, and its last checkpoint before that": (
        RUNNING,
        RUNNING
        | {
            "phase": "Succeeded",
            "reason": "Completed",
            "message": "finished at step 9",
            "checkpoint": {"step": 9, "digest": "0123456789abcdef"},
        },
        ["checkpoint of step 9 committed (0123456789ab)", "Succeeded: finished at step 9"],
    ),
    "failed, with the incident as its message": (
        RUNNING,
        RUNNING
        | {"phase": "Failed", "reason": "Late", "message": "too late", "incident": "too late"},
        ["Failed, Late: too late"],
    ),
    "a rank was lost": (
        RUNNING,
        RUNNING | {"phase": "Recovering", "reason": "PodFailed", "incident": "rank 1 died"},
        ["Recovering, PodFailed", "incident: rank 1 died"],
    ),
}


@pytest.mark.parametrize(("before", "after", "said"), CASES.values(), ids=CASES.keys())
def test_news(before: dict[str, Any], after: dict[str, Any], said: list[str]) -> None:
    assert news(before, after, racks=RACKS) == said


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({}, "job: new"),
        (WAITING, "job: Pending (QuotaExhausted)"),
        (RUNNING | {"loss": "2.5"}, "job: step 5/9 loss 2.5"),
        ({"phase": "Succeeded", "reason": "Completed"}, "job: Succeeded"),
    ],
)
def test_glance(status: dict[str, Any], text: str) -> None:
    assert glance("job", status) == text


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("[rank 0] step 10/20  loss 4.267\n", "step 10/20  loss 4.267"),
        ("[rank 1] noise\n", None),
        ('{"event":"agent_ready"}\n', None),
        ("[rank 0] [W1121 05:01:27 socket.cpp:207] [c10d] hostname\n", None),
    ],
)
def test_log_line(line: str, shown: str | None) -> None:
    assert log_line(line) == shown
