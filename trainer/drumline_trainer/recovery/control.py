"""The rank's end of the control pipe. Standard library only.

A thread reads the orders one by one and keeps what is in force; the training thread looks at it
between steps, or waits for a new placement. An interrupt acts at once, from the reading thread:
`on_interrupt` makes the collectives that the training thread waits in fail. As orders are obeyed in
the order they were written, an interrupt never hits the collectives of a placement that was sent
after it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from drumline_trainer.placement import Placement
from drumline_trainer.recovery.orders import (
    Interrupt,
    Replicated,
    Resume,
    SaveNotice,
    Withdraw,
    order_of,
)


class InterruptedByAgentError(ConnectionError):
    """The agent has ended this membership."""


class Control:
    """What the agent wants of this rank by now."""

    def __init__(self, descriptor: int, *, on_interrupt: Callable[[], None] = lambda: None) -> None:
        """Read orders from `descriptor`, which is ours from now on, until its writers are gone."""
        self.on_interrupt = on_interrupt
        self._changed = threading.Condition()
        self._closed = False
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
        """The newest snapshot that a peer has."""
        with self._changed:
            return self._replicated

    def settle(self, notice_id: str) -> None:
        """The notice has been answered."""
        with self._changed:
            if self._notice is not None and self._notice.id == notice_id:
                self._notice = None

    def check(self, membership: tuple[int, int]) -> None:
        """Raise InterruptedByAgentError if this membership has been ended."""
        with self._changed:
            newer = self._placement is not None and self._placement.membership > membership
            if newer or membership <= self._ended:
                raise InterruptedByAgentError("interrupted by the agent")

    def wait_for_placement(self, *, above: tuple[int, int]) -> Placement:
        """Block until the agent sends a placement of a higher membership.

        Raises:
            ConnectionError: the agent is gone, so none will come.
        """
        with self._changed:
            while self._placement is None or self._placement.membership <= above:
                if self._closed:
                    raise ConnectionError("the agent has closed the control pipe")
                self._changed.wait()
            return self._placement

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
        order = order_of(line)
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
            self._changed.notify_all()
        if isinstance(order, Interrupt):
            self.on_interrupt()
