"""Lines of the agent that `drumline run` and `drumline logs -f` leave out."""

from __future__ import annotations

import pytest

from drumline_agent.base import events
from drumline_agent.base.events import AgentEvent
from drumline_cli.jobs.follow import ROUTINE_EVENTS, is_routine


def written(capfdbinary: pytest.CaptureFixture[bytes], event: str, **fields: object) -> str:
    """Return the line that an agent writes."""
    events.log(AgentEvent(event), **fields)
    return capfdbinary.readouterr().out.decode().removesuffix("\n")


@pytest.mark.parametrize("event", sorted(ROUTINE_EVENTS))
def test_routine_lines_are_left_out(capfdbinary: pytest.CaptureFixture[bytes], event: str) -> None:
    assert is_routine(written(capfdbinary, event, attempt=0, code=0, exit_code=0))


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("round_begun", {"generation": 1, "attempt": 1}),
        ("rank_exited", {"rank": 0, "code": 1}),
        ("rank_exited", {"rank": 0, "code": -9}),
        ("finished", {"exit_code": 1}),
        ("fault", {}),
        ("incident", {}),
        ("record_refused", {}),
    ],
)
def test_faults_and_restarts_are_shown(
    capfdbinary: pytest.CaptureFixture[bytes], event: str, fields: dict[str, object]
) -> None:
    assert not is_routine(written(capfdbinary, event, **fields))


@pytest.mark.parametrize(
    "text",
    [
        "step 3 loss 2.1",
        "",
        "{}",
        '{"event":"finished"}',
        '{"time":"2026-11-29T22:28:41.191+00:00","event":"finished"',
        '{"event": "finished", "time": "2026-11-29T22:28:41.191+00:00"}',
        '{"time": "2026-11-29T22:28:41.191+00:00", "event": "finished"}',
    ],
)
def test_lines_of_a_script_are_shown(text: str) -> None:
    assert not is_routine(text)
