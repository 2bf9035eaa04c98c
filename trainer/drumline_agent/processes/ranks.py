"""Interface between an agent and the ranks of its pod, the same for all kinds of ranks.

`LocalRanks` forks the bundled trainer from a zygote. `commands.CommandRanks` starts a command of
the user's image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from drumline_agent.base.change_notifier import ChangeNotifier
from drumline_agent.protocol.member_reports import Fault, RankView
from drumline_agent.protocol.rank_stacks import RankStack
from drumline_agent.protocol.snapshot_info import SnapshotInfo
from drumline_agent.rank_protocol.heartbeat import Heartbeat
from drumline_agent.rank_protocol.messages import NoticeSaved
from drumline_agent.rank_protocol.orders import RankOrder
from drumline_agent.rank_protocol.placement import Placement


class RankListener(Protocol):
    """Receives what happens to the ranks."""

    def on_fault(self, fault: Fault) -> None:
        """Handle the failure of an attempt."""

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Handle a heartbeat of a rank."""

    def on_snapshot(self, snapshot: SnapshotInfo, *, on_copied: Callable[[float], None]) -> None:
        """Handle a new snapshot. `on_copied` is called with the seconds once a peer has it."""

    def on_saved(self, saved: NoticeSaved) -> None:
        """Handle a rank's answer to a notice."""


class Ranks(Protocol):
    """The ranks of one pod."""

    changes: ChangeNotifier
    """Notified when a rank is done, has quiesced or has ended."""
    shows_places: bool
    """True if `places` may return anything."""

    @property
    def all_preempted(self) -> bool:
        """True if every rank has ended after a notice to leave."""
        ...

    def views(self) -> tuple[RankView, ...]:
        """Return a view of every rank of the present attempt, as of now."""
        ...

    def send_to_all(self, order: RankOrder) -> None:
        """Hand an order to every rank."""

    def kill(self, numbers: Iterable[int], *, reason: str) -> None:
        """Kill ranks that hang."""

    async def places(self) -> tuple[RankStack, ...]:
        """Return where the ranks of a hung attempt are in their program. It ends them."""
        ...

    async def quiesce(self) -> None:
        """Make every rank leave its attempt."""

    async def start_attempt(self, placements: Sequence[Placement]) -> None:
        """Start or resume a rank for each placement."""

    async def end(self, *, grace_seconds: float = 0.0) -> bool:
        """End every rank. Returns whether all of them had done their work."""
        ...

    async def wait_for_teardown(self) -> None:
        """Wait until the ranks that are done have ended."""
