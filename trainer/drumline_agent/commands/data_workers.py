"""Data workers of torch in the session of a rank, by the name that torch gives them.

A signal to the whole session would end them. torch then raises an error in the script, in the
middle of the save for which the signal was sent.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from drumline_agent.commands.process_activity import process_stats

_NAME: Final = "pt_data_worker"
"""Set by torch.utils.data, for `ps` and `top`."""


def signal_session_but_data_workers(session: int, number: int) -> None:
    """Send a signal to the processes of a rank's session, except data workers.

    Args:
        session: process id of the rank, which leads the session.
        number: number of the signal.
    """
    members = list(_members(session))
    if not any(name == _NAME for _, name, _ in members):
        # One call also reaches a process that is started meanwhile.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(session, number)
        return
    for pid, name, _ in members:
        if name != _NAME:
            _send(pid, number)


def kill_orphaned_data_workers(session: int) -> None:
    """Kill data workers whose script has ended. They would notice it seconds later.

    Args:
        session: process id of the rank that has ended.
    """
    for pid, name, parent in list(_members(session)):
        if name == _NAME and parent == os.getpid():
            _send(pid, signal.SIGKILL)


def _members(session: int) -> Iterator[tuple[int, str, int]]:
    """Yield id, name and parent of each process in the group of the session's leader."""
    for pid, name, (_, parent, group, *_) in process_stats():
        if int(group) == session:
            yield pid, name, int(parent)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
