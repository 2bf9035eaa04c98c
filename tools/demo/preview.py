"""Something to see while the demo builds: two real ranks, one of them killed and back.

The agents and the trainer are those of a pod, as processes of this machine. A stand-in for the
operator gives them their membership (`tests.faults.agent.gang`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.agent.agents import Band
from tests.faults.agent.gang import Gang

STEPS = 80
KILLED_AFTER_STEP = 40
_SHOWN_EVERY_STEPS = 20
Say = Callable[[str], None]


@contextmanager
def shown_beside(work: bool, *, say: Say) -> Iterator[None]:
    """Show the preview while the block runs.

    Args:
        work: False: the block takes no minute, so nothing is shown.
        say: takes a line; called in another thread.
    """
    thread = threading.Thread(target=_show, args=(say,), daemon=True)
    if work:
        thread.start()
    yield
    if work:
        thread.join()


def _show(say: Say) -> None:
    try:
        asyncio.run(train(say=say))
    except (OSError, AssertionError, ValueError) as error:
        # the demo itself goes on
        say(f"preview: stopped, {str(error).splitlines()[0] if str(error) else repr(error)}")


async def train(*, say: Say) -> None:
    """Train on two ranks, kill one, and say what its loss cost.

    Raises:
        AssertionError: an agent ended or said nothing for too long.
    """
    say("preview: until the cluster stands, two ranks train here as two pods would")
    with tempfile.TemporaryDirectory() as folder:
        band = Band(folder=Path(folder))
        try:
            await _train(Gang(band), say=say)
        finally:
            for agent in band.agents:
                await agent.kill()


async def _train(gang: Gang, *, say: Say) -> None:
    settings: dict[str, Any] = {
        "log_every_steps": _SHOWN_EVERY_STEPS,
        "checkpoint": {"snapshot_every_steps": 5},
    }
    await gang.start(2, variables=gang.training(steps=STEPS, **settings))
    await gang.push()
    pids = await gang.pids()
    say(f"preview: rank 0 is process {pids[0]}, rank 1 is process {pids[1]}")
    for step in range(_SHOWN_EVERY_STEPS, STEPS + 1, _SHOWN_EVERY_STEPS):
        line = await gang.leader.until_line(f"step {step}/")
        say(f"preview: {line.partition('] ')[2]}")
        if step == KILLED_AFTER_STEP:
            say("preview: rank 1 is killed now (SIGKILL)")
            os.kill(pids[1], signal.SIGKILL)
            incident = await gang.incident()
            say(f"preview: {told(incident)}")
    await gang.ended()
    say("preview: done; the same happens in the cluster when a rank, a pod or a node dies")


def told(incident: Mapping[str, Any]) -> str:
    """Return a closed incident as a sentence: cause, seconds and steps that it cost."""
    seconds = incident["first_step_at"] - incident["fault_at"]
    again = incident["failed_step"] - incident["restored_step"]
    source = "a copy in memory" if incident["tier"] == "Memory" else "a checkpoint"
    return (
        f"{incident['cause']}; both train again after {seconds:.1f} s"
        f" from step {incident['restored_step']} ({source}; {again} steps are repeated)"
    )
