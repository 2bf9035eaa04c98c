"""Heartbeats at a limited rate, without ever hiding where a rank hangs.

A heartbeat that comes too soon after the last one is held back and replaced by the next; the newest
is sent at the latest `seconds` after the one before it, by a thread. The thread makes no heartbeat:
it sends what the training thread made and dated.

Example, with one second: forward at 0.0 s is sent at once; backward at 0.3 s and optimizer at 0.6 s
are held back. A rank that hangs in the optimizer is seen there from 1.0 s on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from drumline_agent.rank_protocol.heartbeat import Heartbeat
from drumline_agent.rank_protocol.messages import RankMessage


class HeartbeatSender:
    """Sends the messages of a rank in order."""

    def __init__(self, send: Callable[[RankMessage], None], *, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self._changed = threading.Condition()
        self._held: Heartbeat | None = None
        self._last = -1e9
        self._thread: threading.Thread | None = None

    def send(self, heartbeat: Heartbeat, *, now: bool = False) -> None:
        """Send a heartbeat, `now` or as soon as the rate allows."""
        with self._changed:
            if now or heartbeat.time_seconds - self._last >= self._seconds:
                self._deliver(heartbeat)
                return
            if self._held is None:
                self._changed.notify()
            self._held = heartbeat
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="heartbeats", daemon=True)
                self._thread.start()

    def send_event(self, word: RankMessage) -> None:
        """Send an event, after a heartbeat that is held back."""
        with self._changed:
            if self._held is not None:
                self._deliver(self._held)
            self._send(word)

    def _deliver(self, heartbeat: Heartbeat) -> None:
        self._held = None
        self._last = time.monotonic()
        self._send(heartbeat)

    def _follow(self) -> None:
        with self._changed:
            while True:
                if self._held is None:
                    self._changed.wait()
                    continue
                early = self._last + self._seconds - time.monotonic()
                if early <= 0:
                    self._deliver(self._held)
                else:
                    self._changed.wait(early)
