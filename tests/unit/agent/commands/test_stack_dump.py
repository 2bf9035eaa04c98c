"""Test how a launcher continues after its hung ranks were asked for stacks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from drumline_agent.commands import stack_dump
from drumline_agent.commands.process_activity import running_processes

# It handles SIGABRT as Python does with PYTHONFAULTHANDLER, but outlives it.
RANK = """
import signal, sys, time
signal.signal(signal.SIGABRT, lambda *_: None)
print("ready", flush=True)
while True:
    time.sleep(60)
"""
LAUNCHER = f"""
import os, subprocess, sys
names = {{"RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0"}}
subprocess.run([sys.executable, "-c", {RANK!r}], env=os.environ | names)
"""


@pytest.fixture
def launcher() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", LAUNCHER]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def test_a_launcher_goes_on_when_the_time_is_over(
    launcher: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stack_dump, "WHOLE_SECONDS", 0.1)
    process = Mock(pid=launcher.pid)
    assert await stack_dump.show_places([process], running=running_processes()) == ()
    assert process.dump is None
    assert state_of(launcher.pid) != "T"
