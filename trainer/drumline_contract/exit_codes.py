"""Exit codes of ranks and pods."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of a rank and of its pod; the operator maps them to failure classes."""

    OK = 0
    """The work is done."""
    APPLICATION = 1
    """The training code raised: restarted within the budget."""
    CONFIG = 64
    """The configuration can never work: not restarted."""
    CORRUPT_CHECKPOINT = 65
    """No checkpoint of those on storage verifies: not restarted, nothing is overwritten."""
    DEVICE = 69
    """A GPU of this pod is missing or does not work: charged to infrastructure, and the pod goes to
    another node. An operator that does not know it restarts the pod where it is."""
    STORAGE = 74
    """The storage of checkpoints fails (full, over quota, unreachable): tried again until it works,
    charged to infrastructure. An operator that does not know it takes it for APPLICATION."""
    PEER_LOST = 75
    """Another member of the gang was lost: charged to infrastructure."""
    PREEMPTED = 77
    """Ended after a notice, with an acknowledged checkpoint."""
    IDLE = 79
    """The terminal of a job of one pod (`template.tty`) is unused, so the job is suspended. An
    older operator that does not know this code treats it as APPLICATION."""
