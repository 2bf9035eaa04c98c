"""Read stacks of real Python processes that abort. Ignore lines that only resemble a stack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drumline_agent.commands.python_stacks import is_printed_stack, place_of

THREADS = """
import os, signal, threading, time
begun = threading.Event()
def helps():
    begun.set()
    time.sleep(60)
threading.Thread(target=helps, daemon=True).start()
begun.wait()
def waits():
    os.kill(os.getpid(), signal.SIGABRT)
waits()
"""
COLLECTIVE = """\
Fatal Python error: Aborted

Thread 0x00007f4d52ffd6c0 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
  File "/code/watch.py", line 7 in run

Current thread 0x00007f4e4cf29740 [python] (most recent call first):
  File "/opt/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 3018 in {inner}
  File "/opt/lib/python3.12/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/opt/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 2 in {outer}
  File "/opt/lib/python3.12/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/code/train.py", line 31 in step
  File "/code/train.py", line 90 in <module>

Extension modules: numpy._core, torch._C (total: 27)"""  # noqa: E501 - as Python prints it


def test_the_main_thread_of_an_aborted_process_is_shown_at_its_own_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(THREADS)
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ended.stderr.splitlines()
    assert place_of(lines) == ("", "train.py, line 10")
    assert all(is_printed_stack(line) for line in lines if line)


@pytest.mark.parametrize(
    ("inner", "outer"), [("all_gather", "all_gather_object"), ("_wait", "barrier")]
)
def test_the_collective_that_the_program_called_is_named(inner: str, outer: str) -> None:
    lines = COLLECTIVE.format(inner=inner, outer=outer).splitlines()
    assert place_of(lines) == (outer, "train.py, line 31")


def test_only_another_thread_may_wait_in_a_collective() -> None:
    text = COLLECTIVE.format(inner="all_reduce", outer="all_reduce")
    before, _, waits = text.partition("Current thread")
    swapped = f"Thread{waits}\n\n{before}"
    assert place_of(swapped.splitlines()) == ("all_reduce", "train.py, line 31")


@pytest.mark.parametrize(
    "line",
    ['  File "train.py", line 3, in <module>', "RuntimeError: boom", "", "Thread 7 has begun"],
)
def test_tracebacks_and_other_lines_are_no_printed_stack(line: str) -> None:
    assert not is_printed_stack(line)
    assert place_of([line]) is None
