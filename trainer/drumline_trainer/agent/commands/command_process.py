"""One process of a user's command: started, signalled with all its children, watched to its end."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from drumline_trainer.agent.commands.own_patterns import PatternReader
from drumline_trainer.agent.commands.process_activity import ActivityWatch
from drumline_trainer.agent.commands.progress_lines import ProgressReader
from drumline_trainer.agent.commands.terminal_lines import TerminalLineSplitter
from drumline_trainer.agent.processes.output import LineReader, PrefixedOutput, open_line_pipe
from drumline_trainer.agent.processes.process_evidence import CpuWatch
from drumline_trainer.agent.processes.reaper import Reaper
from drumline_trainer.host import prctl
from drumline_trainer.rank_protocol.placement import Placement

BAR_SECONDS = 10.0
"""Of the states of a progress bar, which a terminal would show in place, one is printed in this."""


class CommandNotStartedError(Exception):
    """The image cannot run the command; the message says why, in a sentence."""


@dataclass(slots=True, kw_only=True)
class CommandProcess:
    """A process of one attempt, which leads a session of its own."""

    placement: Placement
    pid: int
    exited: asyncio.Future[int]
    """Its exit code; negative for a signal."""
    output: PrefixedOutput
    output_reader: LineReader
    cpu: CpuWatch
    heard_at: float = field(default_factory=time.monotonic)
    """When it last printed a line, or was started."""
    activity: ActivityWatch = field(
        default_factory=lambda: ActivityWatch(begun_at=time.monotonic())
    )
    kill_reason: str | None = None
    """Why it was killed: it hung."""
    ended_by_agent: bool = False
    """The agent has ended it, or asked it to end: its exit is no fault."""
    progress: ProgressReader | PatternReader
    bar_printed_at: float = -BAR_SECONDS
    failed_restore: bool = False
    """It could not use its snapshot."""
    done: bool = False
    """It has ended with exit code 0, and nobody had asked it to end."""

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return not self.exited.done()

    def may_print_bar(self) -> bool:
        """Whether the log has room for another state of a progress bar."""
        due = self.heard_at - self.bar_printed_at >= BAR_SECONDS
        if due:
            self.bar_printed_at = self.heard_at
        return due

    def signal(self, number: int) -> None:
        """Signal the process and its children, while it lives."""
        if self.alive:
            self.signal_group(number)

    def signal_group(self, number: int) -> None:
        """Signal what is left of its children too."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


async def start_command(
    command: Sequence[str],
    *,
    placement: Placement,
    environment: Mapping[str, str],
    on_line: Callable[[CommandProcess, bytes], None],
    progress: ProgressReader | PatternReader,
    reaper: Reaper,
) -> CommandProcess:
    """Start the command for a placement, in the agent's working folder.

    Raises:
        CommandNotStartedError: the image cannot run it.
        OSError: the pod is out of processes, memory or descriptors.
    """
    alone = placement.local_world_size == 1
    output = PrefixedOutput("" if alone else f"rank {placement.rank}")

    def on_each(line: bytes) -> None:
        on_line(process, line)

    reader, write_end = await open_line_pipe(on_each, splitter=TerminalLineSplitter())
    try:
        pid = _spawn(command, environment=environment, output=write_end)
    except OSError as error:
        reader.close()
        raise _explained(error, command[0]) from None
    finally:
        os.close(write_end)
    process = CommandProcess(
        placement=placement,
        pid=pid,
        exited=reaper.watch(pid),
        output=output,
        output_reader=reader,
        cpu=CpuWatch(pid),
        progress=progress,
    )
    return process


def _spawn(command: Sequence[str], *, environment: Mapping[str, str], output: int) -> int:
    """The process id of the command, which leads a session of its own. Raises OSError."""
    parent_pid = os.getpid()
    child = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,  # one pipe keeps the order of the two streams
        start_new_session=True,
        preexec_fn=lambda: prctl.die_with_parent(parent_pid),  # noqa: PLW1509 - no threads
    )
    child.returncode = 0  # the reaper alone waits: subprocess must not take the exit code away
    return child.pid


def _explained(error: OSError, program: str) -> Exception:
    match error.errno:
        case errno.ENOENT:
            reason = "the image has no such program, or not the interpreter that it names"
        case errno.EACCES:
            reason = "it is not executable for this user"
        case errno.ENOEXEC:
            reason = "it is no program for this processor, or a script without `#!`"
        case errno.ENOTDIR | errno.EISDIR | errno.ELOOP | errno.ENAMETOOLONG:
            reason = str(error.strerror)
        case _:
            return error
    return CommandNotStartedError(f"the command {program[:256]!r} cannot be started: {reason}")


def kill(process: CommandProcess) -> None:
    """Kill a process and its children; its end is no fault."""
    process.ended_by_agent = True
    process.signal_group(signal.SIGKILL)
