"""A check whose time is over is cut, with everything that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest

from tests.gpu.deadline import descendants, within
from tests.gpu.outcomes import CUT, FAILED, PASSED, Check, Outcome

FORK = get_context("fork")
CHECK: Check[object] = Check(summary="a check", run=lambda _: iter(()))
STARTS_ANOTHER = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"],
      start_new_session=True).pid, flush=True)
time.sleep(1e6)
"""


def passes() -> Outcome:
    return Outcome(name="mine", summary="a check", outcome=PASSED, words="done")


def starts_and_waits(started: Connection) -> Outcome:
    """A process in a session of its own, which has started another one."""
    words = [sys.executable, "-c", STARTS_ANOTHER]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        started.send([process.pid, int(process.stdout.readline())])
        signal.pause()
    raise AssertionError


def ends_silently() -> Outcome:
    os._exit(5)


def cut(pipe: Connection) -> None:
    """The check's time is over as soon as it has started the others."""
    reader, started = FORK.Pipe(duplex=False)
    pids: list[int] = []

    def comes(_outcome: Connection, _seconds: float | None) -> bool:
        pids.extend(reader.recv())
        return False

    made = within(None, "mine", CHECK, lambda: starts_and_waits(started), comes=comes)
    pipe.send((made, pids, descendants(os.getpid())))


def ended(pipe: Connection, run: Callable[[], Outcome]) -> None:
    made = within(None, "mine", CHECK, run)
    pipe.send((made, descendants(os.getpid())))


def performed(program: Callable[..., None], *arguments: object) -> tuple[object, ...]:
    """What it sends, in a process of its own: `within` kills all its descendants."""
    reader, writer = FORK.Pipe(duplex=False)
    process = FORK.Process(target=program, args=(writer, *arguments))
    process.start()
    result = reader.recv()
    process.join()
    return result


def test_what_ends_in_time_is_what_it_returns() -> None:
    assert performed(ended, passes) == (passes(), [])


def test_what_does_not_is_cut_with_all_that_it_has_started() -> None:
    made, pids, left = performed(cut)
    assert isinstance(made, Outcome)
    assert (made.outcome, made.words, left) == (CUT, "its time was over", [])
    assert isinstance(pids, list)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_check_whose_process_dies_has_failed() -> None:
    made, left = performed(ended, ends_silently)
    assert isinstance(made, Outcome)
    assert (made.outcome, made.words, left) == (FAILED, "its process ended: exit code 5", [])
