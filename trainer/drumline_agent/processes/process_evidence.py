"""Evidence from the kernel about a process, used to find the rank that hangs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from drumline_agent.protocol.member_reports import ProcessEvidence

BUSY_SHARE = 0.3
"""Share of one processor above which a process is busy."""


@dataclass(slots=True)
class CpuWatch:
    """The processor time of one process, read at intervals."""

    pid: int
    cpu_seconds: float = 0.0
    read_at: float = 0.0
    evidence: ProcessEvidence = ProcessEvidence.NONE

    def read(self, *, now: float) -> ProcessEvidence:
        """Return the evidence as of `now`, on the monotonic clock. Reads one small file."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return ProcessEvidence.NONE
        # After the last parenthesis, because a program's name may contain blanks.
        fields = text.rpartition(")")[2].split()
        cpu_seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        passed, used = now - self.read_at, cpu_seconds - self.cpu_seconds
        if passed >= 0.5:  # the kernel counts in hundredths of a second
            self.read_at, self.cpu_seconds = now, cpu_seconds
            # D is uninterruptible sleep, for example in a driver call.
            busy = used >= BUSY_SHARE * passed or fields[0] == "D"
            self.evidence = ProcessEvidence.BUSY if busy else ProcessEvidence.NONE
        return ProcessEvidence.STOPPED if fields[0] in "Tt" else self.evidence
