"""Activity of the processes of a command: they print, or they use a processor.

For programs that report no steps. A pause is normal up to a multiple of the longest pause that
ended by itself, and always up to a least patience.

    prints at 10 s, 12 s, 40 s (longest pause 28 s)   patience max(600, 10 x 28) = 600 s
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SAMPLE_SECONDS: Final = 5.0
"""Between two looks at the processors' time."""
MIN_ACTIVE_SHARE: Final = 0.02
"""Share of one processor that counts as activity. Threads that only wait use less."""
PAUSE_FACTOR: Final = 10.0
"""A hang is longer than this multiple of the longest pause so far."""


@dataclass(slots=True)
class ActivityWatch:
    """Activity of one process with all its children; pure."""

    begun_at: float
    longest_pause: float = 0.0
    _active_at: float | None = None
    _cpu: tuple[float, float] | None = None
    """Seconds of processors, and when they were read."""

    def printed(self, *, at: float) -> None:
        """Note a printed line."""
        self._is_active(at)

    def used(self, cpu_seconds: float, *, at: float) -> None:
        """Note the processor time used so far. Enough of it since the last sample is activity."""
        before, self._cpu = self._cpu, (cpu_seconds, at)
        if before is None:
            self._is_active(at)
            return
        used, passed = cpu_seconds - before[0], at - before[1]
        if used < 0 or used >= MIN_ACTIVE_SHARE * passed:  # less: a child has ended
            self._is_active(at)

    def due(self, *, now: float) -> bool:
        """Return whether the next sample of processor time is due."""
        return self._cpu is None or now - self._cpu[1] >= SAMPLE_SECONDS

    def silent_seconds(self, *, now: float) -> float:
        """Return the seconds since the last activity."""
        return max(0.0, now - self._last)

    def patience_seconds(self, *, least: float) -> float:
        """Return the longest silence in seconds that may be a normal pause."""
        return max(least, PAUSE_FACTOR * self.longest_pause)

    @property
    def _last(self) -> float:
        return self.begun_at if self._active_at is None else self._active_at

    def _is_active(self, at: float) -> None:
        self.longest_pause = max(self.longest_pause, at - self._last)
        self._active_at = max(at, self._last)


def process_tree(root: int, processes: Mapping[int, tuple[int, float]]) -> list[int]:
    """Return the ids of a process and of all below it, `root` first. Empty if it has ended.

    Args:
        root: its process id.
        processes: the parent and the processor seconds of each process, by process id.
    """
    children: dict[int, list[int]] = defaultdict(list)
    for pid, (parent, _) in processes.items():
        children[parent].append(pid)
    tree, stack, seen = list[int](), [root], set[int]()
    while stack:
        pid = stack.pop()
        if pid in processes and pid not in seen:
            seen.add(pid)  # ids that are reused while they are read can make a circle
            tree.append(pid)
            stack += children[pid]
    return tree


def running_processes() -> dict[int, tuple[int, float]]:
    """Return parent and processor seconds of each process, by process id.

    The seconds include those of children that have ended.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    return {
        pid: (int(fields[1]), sum(map(int, fields[11:15])) / ticks)
        for pid, _, fields in process_stats()
    }


def process_stats() -> Iterator[tuple[int, str, list[str]]]:
    """Yield id, name, and the fields after the name of each process. None without /proc."""
    folders = list[Path]()
    with suppress(OSError):  # an image may run without /proc
        folders = list(Path("/proc").iterdir())
    for folder in folders:
        if folder.name.isdigit():
            with suppress(OSError):  # it has just ended
                text = (folder / "stat").read_text(errors="replace")
                name, _, fields = text.partition("(")[2].rpartition(")")
                yield int(folder.name), name, fields.split()
