"""Account for the GPU-seconds that a job held: each second is of one of five kinds.

Held = useful + lost + idle + saving + restarting, exactly. Each period is charged to a kind. Only a
loss moves a charge, from `useful` to `lost`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Event that made held GPU-seconds not useful. The values are names in tables."""

    START = "first starts"
    BOOT = "node boots"
    SAVES = "checkpoints and snapshots"
    PROCESS = "process faults"
    HANG = "hangs"
    NODE = "lost nodes"
    RECLAIM = "spot reclaims"
    PREEMPTION = "preemptions"
    MOVE = "moves"
    RESIZE = "resizes"


@dataclass(slots=True, kw_only=True)
class TimeAccount:
    """GPU-seconds by use."""

    useful: float = 0.0
    """Work that was done and not lost later."""
    lost: float = 0.0
    """Work that was repeated."""
    idle: float = 0.0
    """Nodes were held and nothing ran: an undetected hang, booting nodes, or a lost node without a
    replacement."""
    saving: float = 0.0
    """Training paused for checkpoints and snapshots."""
    restarting: float = 0.0
    """Time from an assignment or a fault until progress."""

    @property
    def held(self) -> float:
        """Return the sum of all kinds."""
        return self.useful + self.lost + self.idle + self.saving + self.restarting


def total(accounts: Iterable[TimeAccount]) -> TimeAccount:
    """Return the sums over jobs."""
    columns = zip(*(astuple(account) for account in accounts), strict=True)
    useful, lost, idle, saving, restarting = [sum(column) for column in columns] or [0.0] * 5
    return TimeAccount(useful=useful, lost=lost, idle=idle, saving=saving, restarting=restarting)


def total_by_cause(accounts: Iterable[Mapping[Cause, float]]) -> dict[Cause, float]:
    """Return the GPU-seconds that were not useful, by cause, over jobs."""
    sums = Counter[Cause]()
    for each in accounts:
        sums.update(each)
    return {cause: sums[cause] for cause in Cause}
