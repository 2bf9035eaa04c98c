"""A check whose time is over is cut, with everything that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest

from tools.gpu import deadline
from tools.gpu.deadline import descendants, within
from tools.gpu.outcomes import CUT, FAILED, PASSED, Check, Outcome

FORK = get_context("fork")
CHECK: Check[object] = Check(summary="a check", run=lambda _: iter(()))
STARTS_ANOTHER = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"],
      start_new_session=True).pid, flush=True)
time.sleep(1e6)
"""


@pytest.fixture(autouse=True)
def _busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was killed is gone once it has run for the last time."""
    monkeypatch.setattr(deadline, "GONE_SECONDS", 120.0)


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


def test_what_ends_in_time_is_what_it_returns() -> None:
    made = within(None, "mine", CHECK, passes)
    assert replace(made, seconds=0.0) == passes()


def test_what_does_not_is_cut_with_all_that_it_has_started() -> None:
    """Its time is over as soon as it has started them."""
    reader, started = FORK.Pipe(duplex=False)
    here, gone = FORK.Pipe(duplex=False)

    def comes(_outcome: Connection, _seconds: float | None) -> bool:
        gone.send(reader.recv())
        return False

    made = within(None, "mine", CHECK, lambda: starts_and_waits(started), comes=comes)
    assert (made.outcome, made.words) == (CUT, "its time was over")
    for pid in here.recv():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_check_whose_process_dies_has_failed() -> None:
    made = within(None, "mine", CHECK, ends_silently)
    assert (made.outcome, made.words) == (FAILED, "its process ended: exit code 5")


def test_descendants_are_children_and_theirs() -> None:
    words = [sys.executable, "-c", STARTS_ANOTHER]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        assert {process.pid, grandchild} <= set(descendants(os.getpid()))
        os.kill(grandchild, signal.SIGKILL)
        process.kill()
