"""PID 1 of a node, without its mounts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from tools.cluster.machine import start, stay

daemon = {"argv": ["/bin/sh", "-c", "echo started > " + sys.argv[1]], "env": {}, "log": sys.argv[2]}
stay({start(daemon): daemon})
"""


def test_a_daemon_that_ends_is_started_again(tmp_path: Path) -> None:
    """Each start waits until this test has read of it."""
    starts = tmp_path / "starts"
    os.mkfifo(starts)
    machine = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(starts), str(tmp_path / "log")], cwd=ROOT
    )
    try:
        assert [starts.read_text() for _ in range(2)] == ["started\n"] * 2
    finally:
        machine.kill()
        machine.wait()
