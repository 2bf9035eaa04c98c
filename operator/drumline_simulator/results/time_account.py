"""Account for the GPU-seconds that a job held: each second is of one of five kinds.

Held = useful + lost + idle + saving + restarting, exactly. Each period is charged to a kind. Only a
loss moves a charge, from `useful` to `lost`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass


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
