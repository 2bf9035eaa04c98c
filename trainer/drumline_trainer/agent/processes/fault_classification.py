"""What a rank's end means: its class, its cause, and whether another start can help.

Pure, but for the one file of the kernel that counts out-of-memory kills.
"""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drumline_trainer.agent.base.outcome import describe_exit_code
from drumline_trainer.contract import MAX_CAUSE_CHARS, ExitCode, FaultClass, Incident

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from drumline_trainer.agent.protocol.member_reports import Fault

SAME_ERROR_LIMIT = 3
STUCK_LIMIT = 3
MAX_CORE_CHARS = 256
_NEVER_AGAIN = (ExitCode.CONFIG, ExitCode.CORRUPT_CHECKPOINT)
_OUT_OF_MEMORY = re.compile(r"^(?:\w+\.)*(?:MemoryError|OutOfMemoryError|_ArrayMemoryError)\b")
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
_KILL_COUNTERS = ("memory.events", "memory.oom_control")
"""Of control groups version 2 and 1."""


def classify(code: int, *, error: str, killed_for_memory: bool) -> FaultClass:
    """Class of a rank's end.

    Args:
        code: exit code, negative for a signal.
        error: what it raised, as `Type: message`; empty where it said nothing.
        killed_for_memory: the kernel has killed a process of this pod for its memory since the
            last fault.
    """
    if _OUT_OF_MEMORY.match(error) or (code == -signal.SIGKILL and killed_for_memory):
        return FaultClass.OUT_OF_MEMORY
    if code == ExitCode.PEER_LOST:
        return FaultClass.INFRASTRUCTURE
    return FaultClass.APPLICATION


def cause(rank: int, code: int, *, words: str) -> str:
    """One line of bounded length: which rank, what it said last, how it ended."""
    reason = describe_exit_code(code)
    words = words[: MAX_CAUSE_CHARS - len(f"rank {rank}:  [{reason}]")]
    return f"rank {rank}: {words} [{reason}]" if words else f"rank {rank}: {reason}"


def objection_to_restart(
    fault: Fault,
    *,
    incidents: Sequence[Incident],
    restarts_left: Mapping[str, int],
    restarts: Mapping[FaultClass, int],
    stuck_attempts: int,
) -> str | None:
    """Why the gang cannot be restarted in place after this fault; None: it can.

    Args:
        fault: the one to blame.
        incidents: earlier ones, oldest first.
        restarts_left: the record's: by class, for this generation.
        restarts: how many of those were used, by class.
        stuck_attempts: attempts in a row, with the one that failed now, that finished no step.
    """
    if fault.exit_code in _NEVER_AGAIN:
        return "starting again cannot help"
    left = restarts_left.get(fault.fault_class)
    # Of what is only a consequence the cause may be a lost pod, which the operator counts.
    if not fault.consequence and left is not None and restarts.get(fault.fault_class, 0) >= left:
        return f"no restart of class {fault.fault_class} is left"
    if _failed_so_before(fault, incidents=incidents) >= SAME_ERROR_LIMIT - 1:
        return f"the same error {SAME_ERROR_LIMIT} times in a row at step {fault.step}"
    if stuck_attempts >= STUCK_LIMIT:
        return f"{STUCK_LIMIT} attempts in a row finished no step"
    return None


def _failed_so_before(fault: Fault, *, incidents: Sequence[Incident]) -> int:
    """How many of the newest incidents were this very error at this very step."""
    if any(describe_exit_code(code) in fault.cause for code in _FROM_OUTSIDE):
        return 0  # that says nothing about the program
    count = 0
    for incident in reversed(incidents):
        if incident.failed_step != fault.step or not _led_by(incident.cause, fault):
            break
        count += 1
    return count


def _led_by(cause: str, fault: Fault) -> bool:
    """Whether an incident's cause begins with this error: the culprit's own comes first."""
    return core_of(cause).startswith(core_of(fault.cause))


def core_of(text: str) -> str:
    """The beginning of a cause without what differs each time."""
    return without_numbers(text)[:MAX_CORE_CHARS]


def without_numbers(text: str) -> str:
    """A cause without ranks, addresses, process ids, times."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+", "#", text)


def memory_kills(cgroup: Path) -> int:
    """How many processes of a control group the kernel has killed for memory; 0 if unknown."""
    for name in _KILL_COUNTERS:
        with suppress(OSError):
            lines = (cgroup / name).read_text().splitlines()
            counts = dict(line.split(maxsplit=1) for line in lines)
            return int(counts.get("oom_kill", "0"))
    return 0


def own_cgroup(
    membership: Path = Path("/proc/self/cgroup"), *, root: Path = Path("/sys/fs/cgroup")
) -> Path:
    """Folder of this process's control group with the kernel's counts of memory.

    In version 1 a container sees its own group as the root of the memory hierarchy, whatever
    `membership` calls it; in version 2 it sees itself at the root of all.
    """
    if (root / "memory").is_dir():
        return root / "memory"
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return root
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    return root / path.lstrip("/")
