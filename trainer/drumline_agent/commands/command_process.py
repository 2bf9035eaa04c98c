"""One process of a user's command: started, signalled with all its children, watched to its end."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from drumline_agent.commands.data_workers import signal_session_but_data_workers
from drumline_agent.commands.own_patterns import PatternReader
from drumline_agent.commands.process_activity import ActivityWatch
from drumline_agent.commands.progress_lines import ProgressReader
from drumline_agent.commands.terminal_lines import TerminalLineSplitter
from drumline_agent.host import prctl
from drumline_agent.processes.output import LineReader, PrefixedOutput, open_line_pipe
from drumline_agent.processes.process_evidence import CpuWatch
from drumline_agent.processes.reaper import Reaper
from drumline_agent.rank_protocol.placement import Placement

BAR_SECONDS = 10.0
"""Seconds between printed states of a progress bar. A terminal would show them in place."""

MAX_HELD_LINES = 200
"""Maximum number of lines kept of a standby, which prints little while it imports."""


class CommandNotStartedError(Exception):
    """The image cannot run the command; the message says why, in a sentence."""


@dataclass(slots=True, kw_only=True)
class CommandProcess:
    """A process of one attempt. It leads its own session."""

    placement: Placement
    pid: int
    exited: asyncio.Future[int]
    """Its exit code; negative for a signal."""
    output: PrefixedOutput
    output_reader: LineReader
    cpu: CpuWatch
    heard_at: float = field(default_factory=time.monotonic)
    """Time of its last line of output, or of its start."""
    activity: ActivityWatch = field(
        default_factory=lambda: ActivityWatch(begun_at=time.monotonic())
    )
    kill_reason: str | None = None
    """Reason for which the agent killed it: it hung."""
    ended_by_agent: bool = False
    """True once the agent has killed it or asked it to end. Its exit is then not a fault."""
    progress: ProgressReader | PatternReader
    bar_printed_at: float = -BAR_SECONDS
    dump: list[str] | None = None
    """Lines of the stacks that it prints, while they are collected."""
    failed_restore: bool = False
    """It could not use its snapshot."""
    done: bool = False
    """True once it has ended with exit code 0 without being asked to end."""
    preloaded: bool = False
    """It was a standby before."""

    @property
    def alive(self) -> bool:
        """True until the process has ended."""
        return not self.exited.done()

    @property
    def has_session(self) -> bool:
        """True until the process and all that it has left in its session have ended."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # what is left belongs to another user
            return self.alive
        return True

    def may_print_bar(self) -> bool:
        """Return whether the next state of a progress bar is due to be printed."""
        due = self.heard_at - self.bar_printed_at >= BAR_SECONDS
        if due:
            self.bar_printed_at = self.heard_at
        return due

    def signal(self, number: int) -> None:
        """Signal the process and its children, while it lives."""
        if self.alive:
            self.signal_group(number)

    def notify(self, number: int) -> None:
        """Signal the process and its children other than data workers, while it lives."""
        if self.alive:
            signal_session_but_data_workers(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and to its remaining children."""
        with suppress(ProcessLookupError, PermissionError):
            # The whole session: workers of data loaders and of launchers hold GPUs and pipes, too.
            os.killpg(self.pid, number)


class HeldLines:
    """Lines of a process, kept until it is known who prints them."""

    def __init__(self) -> None:
        self._held: deque[bytes] = deque(maxlen=MAX_HELD_LINES)
        self._on_line: Callable[[bytes], None] | None = None

    def feed(self, line: bytes) -> None:
        """Pass another line on, or keep it until somebody reads."""
        if self._on_line is None:
            self._held.append(line)
        else:
            self._on_line(line)

    def release(self, on_line: Callable[[bytes], None]) -> None:
        """Hand over what was kept, and each line from now on."""
        self._on_line = on_line
        while self._held:
            on_line(self._held.popleft())

    @property
    def last(self) -> str:
        """The newest of those kept that is not blank, or the empty string."""
        texts = (line.decode(errors="replace").strip() for line in reversed(self._held))
        return next(filter(None, texts), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedProcess:
    """A process that leads its own session. It may serve any rank."""

    pid: int
    exited: asyncio.Future[int]
    reader: LineReader
    lines: HeldLines

    def kill(self) -> None:
        """Kill it and its children."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


async def start_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    reaper: Reaper,
    inherits: Sequence[int] = (),
) -> StartedProcess:
    """Start a command in the agent's working folder, with these descriptors beside the three.

    Args:
        command: program and arguments.
        environment: all variables of the process.
        reaper: collects the exit code.
        inherits: descriptors to pass on.

    Raises:
        CommandNotStartedError: the image cannot run it.
        OSError: the pod is out of processes, memory or descriptors.
    """
    # Lines are held until it is known whether the process is a rank or a standby.
    lines = HeldLines()
    reader, write_end = await open_line_pipe(lines.feed, splitter=TerminalLineSplitter())
    try:
        pid = _spawn(command, environment=environment, output=write_end, inherits=inherits)
    except OSError as error:
        reader.close()
        raise _explained(error, command[0]) from None
    # The child has its own copy. With ours open the pipe would never end.
    finally:
        os.close(write_end)
    return StartedProcess(pid=pid, exited=reaper.watch(pid), reader=reader, lines=lines)


def rank_process(
    started: StartedProcess,
    *,
    placement: Placement,
    on_line: Callable[[CommandProcess, bytes], None],
    progress: ProgressReader | PatternReader,
    preloaded: bool,
) -> CommandProcess:
    """Turn a started process into a rank. Its lines go to `on_line`, earlier ones included.

    Args:
        started: the process, perhaps a standby.
        placement: placement of the rank.
        on_line: called with each line.
        progress: reads steps from lines.
        preloaded: whether the process was a standby.
    """
    # A single rank needs no tag: the pod's log is its log.
    alone = placement.local_world_size == 1
    process = CommandProcess(
        placement=placement,
        pid=started.pid,
        exited=started.exited,
        output=PrefixedOutput("" if alone else f"rank {placement.rank}"),
        output_reader=started.reader,
        cpu=CpuWatch(started.pid),
        progress=progress,
        preloaded=preloaded,
    )
    started.lines.release(lambda line: on_line(process, line))
    return process


def _spawn(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    output: int,
    inherits: Sequence[int],
) -> int:
    """Start the command as the leader of a new session and return its process id.

    Args:
        command: program and arguments.
        environment: environment variables of the process.
        output: file descriptor for both output streams.
        inherits: file descriptors that the process keeps.

    Raises:
        OSError: it cannot be started.
    """
    parent_pid = os.getpid()
    child = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,  # one pipe keeps the order of the two streams
        start_new_session=True,
        pass_fds=inherits,
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
    """Kill a process and its children. Its end is then not a fault."""
    process.ended_by_agent = True
    process.signal_group(signal.SIGKILL)
