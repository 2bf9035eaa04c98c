"""Have the ranks of a pod print their Python stacks, which ends them.

Python prints the stacks of all threads when it is aborted, even if the main thread waits in C++
(PYTHONFAULTHANDLER, which the agent sets). So nothing runs in the ranks before they hang. Ranks of
one process share its output, so they are aborted one after the other.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from drumline_agent.commands.command_process import CommandProcess
from drumline_agent.commands.process_activity import process_tree
from drumline_agent.commands.python_stacks import place_of
from drumline_agent.protocol.rank_stacks import RankStack

DUMP_SECONDS: Final = 1.0
"""For one rank to print its stacks; it takes milliseconds."""
WHOLE_SECONDS: Final = 4.0
"""For all ranks of a pod. The leader waits a little longer."""
MAX_DUMP_LINES: Final = 4000
_POLL_SECONDS: Final = 0.02
_MAX_FILE_BYTES: Final = 262_144
_PYTHON: Final = "python"


async def show_places(
    processes: Sequence[CommandProcess], *, running: Mapping[int, tuple[int, float]]
) -> tuple[RankStack, ...]:
    """Return where the ranks below these processes were. They are aborted.

    Args:
        processes: processes of the present attempt.
        running: the parent and the processor seconds of each process, by process id.
    """
    for process in processes:
        process.ended_by_agent = True
    places: list[RankStack] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(WHOLE_SECONDS):
            await asyncio.gather(*(_show(each, running, places) for each in processes))
    return tuple(sorted(places, key=lambda place: place.rank))


async def _show(
    process: CommandProcess, running: Mapping[int, tuple[int, float]], places: list[RankStack]
) -> None:
    ranks = dict(_ranks_below(process.pid, running))
    # A launcher ends the other ranks as soon as one has ended, so it is stopped meanwhile.
    launcher = process.pid if ranks and process.pid not in ranks.values() else None
    if launcher is not None:
        _send(launcher, signal.SIGSTOP)
    try:
        for rank, pid in ranks.items():
            process.dump = []
            await _abort(pid)
            process.output_reader.drain()
            stack = place_of(process.dump)
            if stack is not None:
                places.append(RankStack(rank=rank, operation=stack[0], place=stack[1]))
    finally:
        # Also when the time is over: a launcher that stays stopped would not heed SIGTERM.
        process.dump = None
        if launcher is not None:
            _send(launcher, signal.SIGCONT)


async def _abort(pid: int) -> None:
    """Abort a process without a core file, since a rank may have a lot of memory."""
    with suppress(OSError, ValueError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, hard))
    _send(pid, signal.SIGABRT)
    await _end_of(pid)


def _ranks_below(
    root: int, running: Mapping[int, tuple[int, float]], *, folder: Path = Path("/proc")
) -> Iterator[tuple[int, int]]:
    """Yield the rank and the process id of each Python process that is a rank and prints stacks.

    A rank has the variables that torchrun sets. Its workers inherit them, and come after it.
    """
    seen: set[bytes] = set()
    for pid in process_tree(root, running):
        with suppress(OSError, ValueError):
            if not (folder / str(pid) / "exe").readlink().name.startswith(_PYTHON):
                continue
            with (folder / str(pid) / "environ").open("rb") as opened:
                entries = opened.read(_MAX_FILE_BYTES).split(b"\0")
            values = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
            rank = values.get(b"RANK", b"")
            if rank in seen or b"TORCHELASTIC_RESTART_COUNT" not in values:
                continue
            if not rank.isdigit() or not _catches_abort(folder / str(pid) / "status"):
                continue
            seen.add(rank)
            yield int(rank), pid


def _catches_abort(path: Path) -> bool:
    """Return whether a process handles SIGABRT, as Python does to print its stacks."""
    caught = next(line for line in path.read_text().splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGABRT - 1) & 1)


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


async def _end_of(pid: int) -> None:
    """Wait for the end of a process that may be no child of ours, for `DUMP_SECONDS`."""
    with suppress(TimeoutError):
        async with asyncio.timeout(DUMP_SECONDS):
            while _lives(pid):  # noqa: ASYNC110 - no event says that a grandchild has ended
                await asyncio.sleep(_POLL_SECONDS)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
