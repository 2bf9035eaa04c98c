"""Convert the end of a command's process to the `Fault` that the agent reports.

A command does not use Drumline's exit codes and reports no exception. So the agent searches the
command's last lines for the cause:

    Traceback (most recent call last): ...
    ValueError: boom                                     <- the cause: the last exception
    torch.distributed....ChildFailedError: train.py FAILED  <- of a launcher: no cause
    [W] destroy_process_group() was not called           <- not the last line

Without an exception the cause is the exit code or the signal. The fault also quotes the last line.

A rank whose peer has died also ends, with an error of its collective library. This error is a
consequence. The leader waits for the cause.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from typing import Final

from drumline_agent.base.exit_codes import pod_exit_code
from drumline_agent.commands.command_process import CommandProcess
from drumline_agent.commands.progress_lines import COLOR
from drumline_agent.processes import fault_classification
from drumline_agent.processes.fault_classification import MemoryKills
from drumline_agent.processes.full_folders import with_full_folder
from drumline_agent.protocol.member_reports import Fault
from drumline_contract import MAX_CAUSE_CHARS, ExitCode, FaultClass

_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit)(?::|$)")
"""The last line of a Python traceback."""
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:: |$)")
"""The first line without an indentation after a traceback: `mine.Diverged: at step 3`."""
_TRACEBACK: Final = "Traceback (most recent call last):"
_LAUNCHER = re.compile(
    r"(?:[\w.]*\.)?(?:ChildFailedError|CalledProcessError|ProcessRaisedException"
    r"|ProcessExitedException|SignalException)\b"
)
"""Exceptions of torchrun, accelerate and `mp.spawn` about a rank that ended."""
_CHILD_SIGNAL = re.compile(r"Signal \d{1,2} \((SIG[A-Z]{1,8})\) received by PID \d{1,10}")
_TERMINATED = re.compile(r"\s*what\(\):\s{1,4}(\S.*)")
"""The message of C++ for an uncaught exception."""
_PEER_LOST: Final = re.compile(
    r"connection (?:was )?(?:likely )?(?:closed|reset)(?: by (?:remote )?peer)?"  # Gloo, TCPStore
    r"|broken pipe"
    r"|ncclremoteerror|remote process exited|remote process exiting"  # NCCL
    r"|failed to recv, got 0 bytes|recvvalue failed|sendbytes failed"  # TCPStore
    r"|another task died|coordination service",  # JAX
    re.IGNORECASE,
)
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_SAID_LAST = re.compile(
    r"[\w./-]+: error: ."  # argparse
    r"|Error: ."  # click
    r"|(?:\S*/)?python[\d.]*: ."  # no such file or module
    r"|(?:\S*/)?(?:ba|da|z|k)?sh: .|\S+: line \d+: ."  # a shell: not found, Killed
    r"|.*: Assertion .* failed"  # C
)
"""The last line of a program that says why it ends, without an exception."""
_CHILD_CODE = re.compile(r"exitcode\s*: (\d{1,3})\b")
"""A line of torchrun about a rank that ended without an exception."""
_NOT_OF_PYTHON: Final = frozenset(
    (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGFPE)
)
"""Ends that no exception brings. An exception long before such an end was handled."""
_LINES_AT_EXIT: Final = 3
"""Lines that may follow an exception whose exit crashes."""
_KILLED_IN_SHELL: Final = 128 + signal.SIGKILL
_NOT_COMPILED = re.compile(r"(?:SyntaxError|IndentationError|TabError)\b")
_PREFIX = re.compile(r"^(?:\[[^\]]{0,64}\]:?\s*|\|\s+)+")
"""Prefix of lines that a launcher prints for its ranks: `[rank1]: ValueError: boom`.

Also the margin of the exceptions of a group: `  | ValueError: boom`."""
_TAG = re.compile(r"^(?:\[[^\]]{0,64}\]:? ?)+")
"""Such a prefix alone: it leaves the indentation of the line."""


class CommandFaults:
    """Faults of the processes of one pod."""

    def __init__(self, *, index: int, memory: MemoryKills | None = None) -> None:
        self._index = index
        self._memory = MemoryKills() if memory is None else memory

    def not_started(self, process_rank: int, membership: tuple[int, int], reason: str) -> Fault:
        """Report that the image cannot run the command. A restart would not help.

        Args:
            process_rank: rank of the process.
            membership: generation and attempt.
            reason: message of the operating system.
        """
        return self._fault(
            process_rank,
            membership,
            fault_class=FaultClass.APPLICATION,
            cause=reason,
            exit_code=ExitCode.CONFIG,
        )

    def process_ended(self, process: CommandProcess, code: int, *, step: int) -> Fault:
        """Report an unexpected end of a process. A negative code is the signal that ended it.

        Args:
            process: the process.
            code: exit code.
            step: newest step that is known.
        """
        placement, now = process.placement, time.time()
        # 1. The leader had this process killed: the hang began when it was last heard.
        if process.kill_reason is not None:
            return self._fault(
                placement.rank,
                placement.membership,
                fault_class=FaultClass.HANG,
                cause=f"rank {placement.rank}: {process.kill_reason}",
                exit_code=pod_exit_code(code),
                step=step,
                at=now - (time.monotonic() - process.heard_at),
            )
        # 2. Only the output can tell why an unknown program ended.
        lines = [COLOR.sub("", line) for line in process.output.last_lines]
        error, last_line = with_full_folder(_error_of(lines, code)), last_printed(lines)
        message = error or last_line
        # The kernel's counter is the only proof that a SIGKILL was an out-of-memory kill.
        short = self._memory.ran_out(placement.membership)
        # A shell shows the SIGKILL of its program as a code of its own.
        was_killed = short and code == _KILLED_IN_SHELL
        lost = lost_peers(lines, error=error)
        # 3. A lost peer is a consequence: the cause is reported by another pod, or is the network.
        fault_class = (
            FaultClass.INFRASTRUCTURE
            if lost
            else fault_classification.classify(
                -signal.SIGKILL if was_killed else min(code, ExitCode.APPLICATION),
                error=message,
                killed_for_memory=short,
            )
        )
        # An exception about memory (CUDA's, say) explains itself better than the pod's limit.
        killed_for_memory = fault_class == FaultClass.OUT_OF_MEMORY and (
            not error or was_killed or fault_classification.child_killed(error)
        )
        return self._fault(
            placement.rank,
            placement.membership,
            fault_class=fault_class,
            cause=_cause(
                placement.rank,
                code,
                error=error,
                last_line=last_line,
                memory_limit_bytes=self._memory.limit_bytes() if killed_for_memory else None,
            ),
            exit_code=ExitCode.PEER_LOST if lost else _shown(code, error=message),
            step=step,
            consequence=lost,
            in_restore=process.failed_restore,
        )

    def _fault(
        self,
        rank: int,
        membership: tuple[int, int],
        *,
        fault_class: FaultClass,
        cause: str,
        exit_code: int,
        step: int = 0,
        at: float | None = None,
        consequence: bool = False,
        in_restore: bool = False,
    ) -> Fault:
        now = time.time()
        return Fault(
            generation=membership[0],
            attempt=membership[1],
            index=self._index,
            rank=rank,
            fault_class=fault_class,
            cause=cause[:MAX_CAUSE_CHARS],
            at=now if at is None else at,
            detected_at=now,
            step=step,
            exit_code=exit_code,
            consequence=consequence,
            in_restore=in_restore,
        )


def _error_of(lines: Sequence[str], code: int) -> str:
    error = last_exception(lines)
    if code in _NOT_OF_PYTHON and not any(error in line for line in lines[-_LINES_AT_EXIT:]):
        return ""
    return error


def last_exception(lines: Sequence[str]) -> str:
    """Return the last exception among the last lines of a process; empty without one.

    Without an exception, the last line counts if it is a known kind of message about the end.

    The exception of a file that Python cannot compile gets the file and the line: its own text
    does not name them.
    """
    texts = [_PREFIX.sub("", line.strip()) for line in lines]
    raised = _raised(lines)
    numbers = [
        number for number, text in enumerate(texts) if number in raised or _EXCEPTION.match(text)
    ]
    if not numbers:
        said = texts[-1] if texts and _SAID_LAST.match(texts[-1]) else ""
        return next((match[1] for text in texts if (match := _TERMINATED.match(text))), said)
    own = [number for number in numbers if not _LAUNCHER.match(texts[number])]
    if not own:
        killed = next((match for text in texts if (match := _CHILD_SIGNAL.search(text))), None)
        if killed is not None:
            return f"a rank: {killed[0]}"
        # A rank without an exception: its own last words, or its exit code.
        said = [text for text in texts[: numbers[0]] if _SAID_LAST.match(text)]
        codes = [match[1] for text in texts if (match := _CHILD_CODE.search(text))]
        ended = f"a rank: exit code {codes[0]}" if codes else texts[numbers[-1]]
        return said[-1] if said else ended
    error = texts[own[-1]]
    places = [match for text in texts[: own[-1]] if (match := _PLACE.match(text))]
    # A syntax error is at the place that the traceback names last, not in the line of the error.
    if _NOT_COMPILED.match(error) and places:
        return f"{error} ({places[-1][1]}, line {places[-1][2]})"
    return error


def _raised(lines: Sequence[str]) -> set[int]:
    """Return the numbers of the lines that end a traceback."""
    ends: set[int] = set()
    inside = False
    for number, line in enumerate(lines):
        text = _TAG.sub("", line.rstrip())
        if text.strip() == _TRACEBACK:
            inside = True
        elif inside and _RAISED.match(text):
            ends.add(number)
            inside = False
    return ends


def last_printed(lines: Sequence[str]) -> str:
    """Return the last line without what a launcher put before it; empty without lines."""
    return _PREFIX.sub("", lines[-1].strip()) if lines else ""


def lost_peers(lines: Sequence[str], *, error: str) -> bool:
    """Return whether a process ended because it lost a peer.

    If there is an exception, only its text decides. Otherwise (after an abort in C++, say) all the
    last lines count.
    """
    return any(_PEER_LOST.search(text) for text in ([error] if error else lines))


def _cause(
    rank: int, code: int, *, error: str, last_line: str, memory_limit_bytes: int | None
) -> str:
    if (
        code >= 0 and not error and memory_limit_bytes is None
    ):  # a command's own codes have no names here
        ended = f"rank {rank}: exit code {code}"
        return f"{ended}; last line: {last_line}"[:MAX_CAUSE_CHARS] if last_line else ended
    if code >= 0 and memory_limit_bytes is None:
        reason = f" [exit code {code}]"
        return f"rank {rank}: {error}"[: MAX_CAUSE_CHARS - len(reason)] + reason
    return fault_classification.cause(
        rank, code, error=error, last_line=last_line, memory_limit_bytes=memory_limit_bytes
    )


def _shown(code: int, *, error: str) -> int:
    """Exit codes of a user's own mean nothing to the operator, which has its own by number."""
    if code < 0:
        return pod_exit_code(code)
    failed = fault_classification.device_failed(ExitCode.APPLICATION, error=error)
    return ExitCode.DEVICE if failed else ExitCode.APPLICATION
