"""The rank's end of the control pipe. Standard library only.

A thread reads the orders in sequence and keeps those in force; the training thread looks at them
between steps, or waits for a new placement. When the training thread has to leave a membership, the
reading thread makes the collective fail that it waits in (`on_interrupt`), repeatedly until it has
left, as it may have been about to wait. Only then is the next order read, so an interrupt never
hits the collectives of a placement that was sent after it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from drumline_agent.rank_protocol.orders import (
    Interrupt,
    Replicated,
    ReportCollectives,
    Resume,
    SaveNotice,
    Withdraw,
    parse_rank_order,
)
from drumline_agent.rank_protocol.placement import Placement

logger = logging.getLogger(__name__)

REPEAT_SECONDS = 0.02
"""Time for which the training thread may leave by itself before it is interrupted again."""


class InterruptedByAgentError(ConnectionError):
    """The agent has ended this membership."""


class Control:
    """The orders of the agent that are in force for this rank."""

    def __init__(
        self, descriptor: int, *, on_interrupt: Callable[[float], None] = lambda _: None
    ) -> None:
        """Read orders from `descriptor`, which is closed here, until its writers are gone.

        Args:
            descriptor: the reading end of a pipe.
            on_interrupt: called with the seconds since the training thread was ordered to leave.
        """
        self.on_interrupt = on_interrupt
        self.on_report: Callable[[], None] = lambda: None
        """Called for `ReportCollectives` of the present membership; must not block."""
        self._changed = threading.Condition()
        self._closed = False
        self._member: tuple[int, int] | None = None
        """The membership whose collectives the training thread is in."""
        self._ended = (0, -1)
        self._placement: Placement | None = None
        self._notice: SaveNotice | None = None
        self._replicated: Replicated | None = None
        threading.Thread(target=self._read, args=(descriptor,), name="control", daemon=True).start()

    @property
    def notice(self) -> SaveNotice | None:
        """The notice to act on, if any."""
        with self._changed:
            return self._notice

    @property
    def replicated(self) -> Replicated | None:
        """The newest snapshot that a peer holds."""
        with self._changed:
            return self._replicated

    @property
    def leave_ordered(self) -> bool:
        """True if the present membership has been ended and this rank is still in it."""
        return self._must_leave()

    def clear_notice(self, notice_id: str) -> None:
        """Forget a notice that has been answered."""
        with self._changed:
            if self._notice is not None and self._notice.id == notice_id:
                self._notice = None

    def enter(self, membership: tuple[int, int]) -> None:
        """Join this membership. Raises InterruptedByAgentError if it has been ended already."""
        with self._changed:
            self._member = membership
        self.check()

    def check(self) -> None:
        """Raise InterruptedByAgentError if the present membership has been ended."""
        if self._must_leave():
            raise InterruptedByAgentError("interrupted by the agent")

    def wait_for_placement(self) -> Placement:
        """Wait, after leaving a membership, until the agent sends a placement of a higher one.

        Raises:
            ConnectionError: the agent is gone, so none will come.
        """
        with self._changed:
            left, self._member = self._member or (0, -1), None
            self._changed.notify_all()
            while self._placement is None or self._placement.membership <= left:
                if self._closed:
                    raise ConnectionError("the agent has closed the control pipe")
                self._changed.wait()
            return self._placement

    def _must_leave(self) -> bool:
        with self._changed:
            if self._member is None:
                return False
            newer = self._placement is not None and self._placement.membership > self._member
            return newer or self._member <= self._ended

    def _read(self, descriptor: int) -> None:
        try:
            with os.fdopen(descriptor, "rb") as lines:
                for line in lines:
                    self._obey(line)
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()

    def _obey(self, line: bytes) -> None:
        order, wanted = parse_rank_order(line), False
        # 1. Store the order under the lock. The training thread looks at it between steps.
        with self._changed:
            match order:
                case Resume(placement=placement):
                    self._placement = placement
                case Interrupt():
                    self._ended = max(self._ended, order.membership)
                case SaveNotice():
                    self._notice = order
                case Withdraw(id=withdrawn):
                    if self._notice is not None and self._notice.id == withdrawn:
                        self._notice = None
                case Replicated():
                    self._replicated = order
                case ReportCollectives():
                    wanted = order.membership == self._member
            self._changed.notify_all()
        # 2. Outside of the lock, because the report takes time.
        if wanted:
            self.on_report()
        # 3. After an interrupt: abort collectives again and again until the rank has left, as the
        # rank may enter the next one between two aborts.
        ordered, failure = time.monotonic(), ""
        while self._must_leave():
            try:
                self.on_interrupt(time.monotonic() - ordered)
            except Exception as error:  # tried again; this thread has further orders to read
                if failure != (failure := repr(error)):
                    logger.exception("interrupting the collectives failed")
            with self._changed:
                self._changed.wait_for(lambda: self._member is None, REPEAT_SECONDS)
