"""A check in a process of its own, which is ended when its time is over, with all that it started.

What a check starts may lead sessions of its own and start more. So there is a keeper between this
process and the check's: it adopts what is orphaned, and kills its descendants until none is left.
One that waits in a driver that hangs cannot be killed; it is not waited for either.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from drumline_agent.host.prctl import adopt_orphans
from tools.gpu.outcomes import CUT, FAILED, Check, Outcome

GONE_SECONDS = 10.0
"""For killed processes to be gone."""
_LOOK_SECONDS = 0.02
_FORK = get_context("fork")
"""Nothing here has used CUDA, and there is one thread."""
Comes = Callable[[Connection, float | None], bool]
"""Waits so long for an outcome; whether there is one."""


def within(
    seconds: float | None,
    name: str,
    check: Check[object],
    run: Callable[[], Outcome],
    *,
    comes: Comes = Connection.poll,
) -> Outcome:
    """What `run` returns in a child; CUT where it does not in time.

    Args:
        seconds: None: as long as it takes.
        name: of the check.
        check: what it is, for the report.
        run: forked, so it may hold what cannot be sent.
        comes: as `Connection.poll`.
    """
    began = time.monotonic()
    reader, writer = _FORK.Pipe(duplex=False)
    nothing = Outcome(name=name, summary=check.summary, outcome=FAILED)
    keeper = _FORK.Process(target=_keep, args=(seconds, nothing, run, comes, writer))
    keeper.start()
    writer.close()
    outcome: Outcome = reader.recv()
    keeper.join()
    return replace(outcome, seconds=round(time.monotonic() - began, 1))


def _keep(
    seconds: float | None,
    nothing: Outcome,
    run: Callable[[], Outcome],
    comes: Comes,
    answer: Connection,
) -> None:
    """Run the check in a child, and leave nothing of it."""
    adopt_orphans()
    reader, writer = _FORK.Pipe(duplex=False)
    child = _FORK.Process(target=_send, args=(run, writer))
    child.start()
    writer.close()
    outcome = replace(nothing, outcome=CUT, words="its time was over")
    if comes(reader, seconds):
        try:
            outcome = reader.recv()
        except EOFError:
            child.join()
            words = f"its process ended: exit code {child.exitcode}"
            outcome = replace(nothing, words=words)
    if left := kill_descendants():
        words = f"{outcome.words}; processes {left} cannot be killed"
        outcome = replace(outcome, outcome=FAILED, words=words)
    answer.send(outcome)


def _send(run: Callable[[], Outcome], writer: Connection) -> None:
    writer.send(run())


def kill_descendants() -> list[int]:
    """Until there is none, or `GONE_SECONDS` are over. Returns those that are left."""
    until = time.monotonic() + GONE_SECONDS
    while left := descendants(os.getpid()):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        if time.monotonic() > until:
            return left
        time.sleep(_LOOK_SECONDS)
    return []


def descendants(ancestor: int) -> list[int]:
    """Its children, theirs, and so on."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    all_pids: list[int] = []
    generation = children.get(ancestor, [])
    while generation:
        all_pids += generation
        generation = [child for pid in generation for child in children.get(pid, [])]
    return all_pids
