"""Classification of the end of a rank's process: its fault class and its cause.

Pure, but for the kernel's file that counts out-of-memory kills.
"""

from __future__ import annotations

import re
import signal
from contextlib import suppress
from pathlib import Path

from drumline_agent.base.exit_codes import SIGNALS_FROM_OUTSIDE, describe_exit_code
from drumline_agent.protocol.membership import Membership
from drumline_contract import MAX_CAUSE_CHARS, ExitCode, FaultClass

_OUT_OF_MEMORY = re.compile(
    r"^(?:\w+\.)*(?:(?:MemoryError|OutOfMemoryError|_ArrayMemoryError)\b"
    r"|\w+: RESOURCE_EXHAUSTED: Out of memory"
    r"|\w+: (?:CUDA|HIP)(?: driver)?(?: error:)? out of memory)"
)
"""Python's, numpy's and torch's classes, and the words of JAX, of CUDA itself and of old torch."""
_CHILD_KILLED = re.compile(
    r"is killed by signal: Killed|killed by signal: 9|Signal 9 \(SIGKILL\)"
    r"|exit ?code:? -9\b|terminated abruptly|BrokenProcessPool|: line \d+: +\d+ Killed\b"
)
"""A worker of a DataLoader or a pool, a rank of torchrun, or a program of a shell was killed. Their
parents report it as an error."""
_DEVICE_FAILED = re.compile(
    r"uncorrectable (?:ECC|NVLink) error|hardware stack error|no CUDA-capable device is detected"
    r"|CUDA-capable device\(s\) is/are busy or unavailable|No CUDA GPUs are available"
    r"|CUDA error: initialization error|CUDA driver initialization failed|Found no NVIDIA driver"
    r"|driver version is insufficient|driver on your system is too old|driver shutting down"
    r"|unsupported display driver|forward compatibility was attempted on non supported HW"
    r"|driver/library version mismatch|system not yet initialized|(?:GPU|device) is lost"
    r"|fallen off the bus|peer GPU memory over nvlink or a hardware error"
    r"|MPS client failed to connect|call between the MPS server and the MPS client failed"
    r"|MPS server is not ready|MPS client has been terminated",
    re.IGNORECASE,
)
"""CUDA's (cudaGetErrorString), NVML's, the kernel module's and torch's words for a GPU, a driver or
a fabric manager ("system not yet initialized", Xid 79: "fallen off the bus") that does not work. An
illegal access, a failed assertion and an unspecified launch failure may be the program's: they are
charged to it, and a GPU that is broken besides is reported by its node (docs/decisions/0022)."""
_KILL_COUNTERS = ("memory.events", "memory.oom_control")
"""Files with the kernel's counters in control groups version 2 and 1."""
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_NO_LIMIT_BYTES = 2**60
"""Version 1 writes the largest page-aligned number for no limit."""


def classify(code: int, *, error: str, killed_for_memory: bool) -> FaultClass:
    """Return the fault class of the end of a rank's process.

    A SIGKILL or SIGTERM without a recorded out-of-memory kill came from outside, so it is not a
    fault of the program. It is charged to the infrastructure, like a GPU that fails.

    Args:
        code: exit code, negative for a signal.
        error: the exception it raised, as `Type: message`; empty if it reported none.
        killed_for_memory: whether the kernel has killed a process of this pod for memory since the
            last fault.
    """
    if _OUT_OF_MEMORY.match(error):
        return FaultClass.OUT_OF_MEMORY
    # A SIGKILL alone proves nothing: kubelets and operators send it, too.
    if killed_for_memory and (code == -signal.SIGKILL or child_killed(error)):
        return FaultClass.OUT_OF_MEMORY
    if device_failed(code, error=error) or code in (
        ExitCode.PEER_LOST,
        ExitCode.STORAGE,
        *SIGNALS_FROM_OUTSIDE,
    ):
        return FaultClass.INFRASTRUCTURE
    return FaultClass.APPLICATION


def child_killed(error: str) -> bool:
    """Return whether the error says that a child of the process was killed."""
    return _CHILD_KILLED.search(error) is not None


def device_failed(code: int, *, error: str) -> bool:
    """Return whether a GPU or its driver is broken, so that a restart here does not help."""
    if code == ExitCode.DEVICE:
        return True
    return code == ExitCode.APPLICATION and _DEVICE_FAILED.search(error) is not None


def cause(
    rank: int, code: int, *, error: str, last_line: str = "", memory_limit_bytes: int | None = None
) -> str:
    """Describe the end of a rank's process in one line of bounded length.

    A printed line is not a cause. It is quoted as the last line, and only if no error is known.

    Args:
        rank: global rank.
        code: exit code, negative for a signal.
        error: the exception that it raised, as `Type: message`; empty without one.
        last_line: the last line that it printed.
        memory_limit_bytes: the pod's limit if the kernel killed the process for memory; otherwise
            None.
    """
    reason = describe_exit_code(code)
    if memory_limit_bytes is not None:
        limit = (
            f": the pod's limit is {_quantity(memory_limit_bytes)}" if memory_limit_bytes else ""
        )
        error, last_line = f"out of memory{limit}; raise resources.memory", ""
    if error:
        return (
            f"rank {rank}: {error[: MAX_CAUSE_CHARS - len(f'rank {rank}:  [{reason}]')]} [{reason}]"
        )
    ended = f"rank {rank}: {reason}"
    return f"{ended}; last line: {last_line}"[:MAX_CAUSE_CHARS] if last_line else ended


def _quantity(size_bytes: int) -> str:
    """Return a size in the unit that a manifest would use."""
    for unit, factor in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes}"


class MemoryKills:
    """Remembers how often the kernel has killed processes of a control group for memory.

    All processes that are killed in an attempt in which memory ran out count as killed for memory.
    """

    def __init__(self, cgroup: Path | None = None) -> None:
        self._cgroup = own_cgroup() if cgroup is None else cgroup
        self._count = memory_kills(self._cgroup)
        self._short_of_memory: Membership | None = None

    def ran_out(self, membership: Membership) -> bool:
        """Return whether memory has run out in this attempt."""
        count = memory_kills(self._cgroup)
        # Every rank of the attempt may be the cause, because the kernel kills one of several.
        if count > self._count:
            self._count, self._short_of_memory = count, membership
        return self._short_of_memory == membership

    def limit_bytes(self) -> int:
        """Return the memory limit of the control group; 0 without one, or if unknown."""
        return memory_limit(self._cgroup)


def memory_limit(cgroup: Path) -> int:
    """Return the memory limit of a control group in bytes; 0 without one, or if unknown."""
    for name in _LIMITS:
        with suppress(OSError, ValueError):
            limit = int((cgroup / name).read_text())
            return limit if limit < _NO_LIMIT_BYTES else 0
    return 0


def memory_kills(cgroup: Path) -> int:
    """Count the processes of a control group that were killed for memory; 0 if unknown."""
    for name in _KILL_COUNTERS:
        with suppress(OSError):
            lines = (cgroup / name).read_text().splitlines()
            counts = dict(line.split(maxsplit=1) for line in lines)
            return int(counts.get("oom_kill", "0"))
    return 0


def own_cgroup(
    membership: Path = Path("/proc/self/cgroup"), *, root: Path = Path("/sys/fs/cgroup")
) -> Path:
    """Return the folder of this process's control group that has the kernel's memory counters.

    In version 1 a container sees its own group as the root of the memory hierarchy, whatever
    `membership` calls it; in version 2 it sees itself at the root of all hierarchies.
    """
    if (root / "memory").is_dir():
        return root / "memory"
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return root
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    return root / path.lstrip("/")
