"""Processes that outlive the rank that started them, in sessions of their own.

A signal to a rank's session does not reach them. torchrun starts each of its workers in a session,
so workers that ignore SIGTERM would train and save beside the next attempt. They have the variables
of their rank, and among these a mark that no other process of the machine has.

`sudo`, `su -` and `env -i` drop the variables, and some programs overwrite them by their title.
The agent adopts such an orphan, so its parent shows it. Orphans of `kubectl exec` have the
variables of the container.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from drumline_agent.commands.process_activity import process_tree
from drumline_contract import Env

MARK_VARIABLE: Final = "DRUMLINE_RANK_MARK"
"""Set in each rank to a text that only this agent knows."""
_MAX_ENVIRONMENT_BYTES: Final = 262_144


def leftovers(
    mark: str,
    *,
    kept: Iterable[int],
    processes: Mapping[int, tuple[int, float]],
    folder: Path = Path("/proc"),
) -> list[int]:
    """Return the ids of processes with this mark and of unknown orphans, in ascending order.

    Args:
        mark: value of MARK_VARIABLE.
        kept: ids of processes that are left out, with all below them.
        processes: the parent and the processor seconds of each process, by process id.
        folder: folder of the kernel's process files.
    """
    own = os.getpid()
    spared = {pid for root in kept for pid in process_tree(root, processes)}
    remaining: list[int] = []
    for pid in sorted(processes.keys() - spared - {own}):
        variables = _environment(folder / str(pid) / "environ")
        if variables is None:
            continue
        is_orphan = processes[pid][0] == own and Env.JOB_UID not in variables
        if is_orphan or variables.get(MARK_VARIABLE) == mark:
            remaining.append(pid)
    return remaining


def kill_all(pids: Iterable[int]) -> None:
    """Kill these processes, as far as they still run and are this user's."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _environment(path: Path) -> dict[str, str] | None:
    """Return the variables of a process. None: it has ended, or is another user's."""
    with suppress(OSError), path.open("rb") as opened:
        text = opened.read(_MAX_ENVIRONMENT_BYTES).decode(errors="replace")
        return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)
    return None
