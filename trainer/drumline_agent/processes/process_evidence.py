"""Evidence from the kernel about a process, used to find the rank that hangs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from drumline_agent.protocol.member_reports import ProcessEvidence

BUSY_SHARE = 0.3
"""Share of the time above which a process that runs, or is ready to run, is busy."""


@dataclass(slots=True)
class CpuWatch:
    """The processor time of one process, read at intervals.

    On a node with more work than processors, a process that computes gets little time. So the time
    for which its main thread was ready to run counts as well.
    """

    pid: int
    cpu_seconds: float = 0.0
    read_at: float = 0.0
    evidence: ProcessEvidence = ProcessEvidence.NONE

    def read(self, *, now: float) -> ProcessEvidence:
        """Return the evidence as of `now`, on the monotonic clock. Reads two small files."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return ProcessEvidence.NONE
        # After the last parenthesis, because a program's name may contain blanks.
        fields = text.rpartition(")")[2].split()
        cpu_seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        cpu_seconds += _ready_seconds(self.pid)
        passed, used = now - self.read_at, cpu_seconds - self.cpu_seconds
        if passed >= 0.5:  # the kernel counts in hundredths of a second
            self.read_at, self.cpu_seconds = now, cpu_seconds
            # D is uninterruptible sleep, for example in a driver call.
            busy = used >= BUSY_SHARE * passed or fields[0] == "D"
            self.evidence = ProcessEvidence.BUSY if busy else ProcessEvidence.NONE
        return ProcessEvidence.STOPPED if fields[0] in "Tt" else self.evidence


def _ready_seconds(pid: int) -> float:
    """Return the time for which the main thread waited for a processor, or 0 if not known."""
    try:
        # Time on a processor, time on its queue (both ns), number of time slices.
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
