"""PID 1 of one node: makes its mounts, starts its daemons and starts them again, collects the dead.

A node is a set of namespaces (process, mount, network) over this machine's own root filesystem,
with a /run, /var/lib and /var/log of its own. So every daemon finds its default paths, several
nodes do not meet, and killing this one process kills the whole node at once, containers included,
as a power cut would. Run as a script: `machine.py PLAN.json`. Standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

_CONTAINERD = "/run/containerd/containerd.sock"
_RESTART_SECONDS = 1.0
"""As systemd would: a kubelet ends where containerd listens already and is not initialized yet."""


def main(plan_file: Path) -> None:
    """Start the node and stay."""
    plan = json.loads(plan_file.read_text())
    mount("-t", "proc", "proc", "/proc")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for source, target in plan["binds"].items():
        mount("--bind", source, target)
    containerd, *daemons = plan["daemons"]
    running = {start(containerd): containerd}
    wait_for_socket(_CONTAINERD)
    running |= {start(daemon): daemon for daemon in daemons}
    stay(running)


def stay(running: dict[subprocess.Popen[bytes], dict[str, Any]]) -> NoReturn:
    """Collect whatever ends, and start daemons among it again."""
    while True:
        ended, _ = os.wait()
        for process in [process for process in running if process.pid == ended]:
            daemon = running.pop(process)
            time.sleep(_RESTART_SECONDS)
            running[start(daemon)] = daemon


def mount(*arguments: str) -> None:
    """One mount, seen by this node only."""
    subprocess.run(["mount", *arguments], check=True)


def start(daemon: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start one daemon with its role in its environment and its own log."""
    with Path(daemon["log"]).open("ab") as log:
        return subprocess.Popen(
            daemon["argv"],
            env={**os.environ, **daemon["env"]},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def wait_for_socket(path: str) -> None:
    """Return when something accepts there: a kubelet ends at once without its runtime."""
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                return
        time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
