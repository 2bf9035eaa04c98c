"""Where the GPU-seconds went that a job held: each second is one of five kinds.

Held = useful + lost + idle + saving + restarting, exactly: a kind is charged wherever time passes,
and only a loss moves what was charged, from `useful` to `lost`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass


@dataclass(slots=True, kw_only=True)
class TimeAccount:
    """GPU-seconds by what became of them."""

    useful: float = 0.0
    """Work that was done and not lost later."""
    lost: float = 0.0
    """Work that had to be done again."""
    idle: float = 0.0
    """Nodes were held and nothing ran: a hang that nobody had noticed, nodes that still booted, a
    lost node without another one."""
    saving: float = 0.0
    """Training stood still for checkpoints and snapshots."""
    restarting: float = 0.0
    """From an assignment or a fault until progress."""

    @property
    def held(self) -> float:
        """All of them."""
        return self.useful + self.lost + self.idle + self.saving + self.restarting


def total(accounts: Iterable[TimeAccount]) -> TimeAccount:
    """The sums over jobs."""
    columns = zip(*(astuple(account) for account in accounts), strict=True)
    useful, lost, idle, saving, restarting = [sum(column) for column in columns] or [0.0] * 5
    return TimeAccount(useful=useful, lost=lost, idle=idle, saving=saving, restarting=restarting)
