"""Memory that this machine, or this container, still has. Standard library only; Linux."""

from __future__ import annotations

from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
"""Files of control groups, versions 2 and 1: limit, usage, statistics, and the reclaimable part of
these."""


def available_memory(*, proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Return the bytes that new processes can have, pages of files included that are given up.

    Free pages alone are few on every machine that has read files: they hold them.

    Raises:
        OSError: there is no such file as `meminfo`.
        ValueError: it says nothing of what is available (Linux before 3.14).
    """
    # meminfo is in KiB.
    of_machine = 1024 * _figure(proc / "meminfo", "MemAvailable:")
    # Version 2 first. A machine has files of one version at this path.
    for limit, use, figures, given_up in _FILES:
        try:
            most, used = int((cgroup / limit).read_text()), int((cgroup / use).read_text())
            # Inactive pages of files are reclaimed before the limit is enforced.
            used -= _figure(cgroup / figures, given_up)
        except (OSError, ValueError):  # no such version, or "max": no limit
            continue
        # A container cannot get more than the machine has.
        return max(0, min(of_machine, most - used))
    return of_machine


def _figure(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        words = line.split()
        if words and words[0] == name:
            return int(words[1])
    raise ValueError(f"{file}: no {name}")
