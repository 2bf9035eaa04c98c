"""How many files the operator's process may have open: at least a socket for each gang that trains.

Container runtimes start processes with the soft limit that their own unit has, often 1,024
(containerd 2 no longer raises it). With more gangs than that every further socket would fail, those
to the API server too.
"""

from __future__ import annotations

import resource


def raise_limit() -> int:
    """Raise the soft limit of this process to its hard limit; returns the new limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
