"""Heartbeats at a limited rate, without ever hiding where a rank hangs.

A heartbeat that comes too soon after the last one is held back and replaced by the next; the newest
is sent at the latest `seconds` after the one before it, by a thread. The thread observes nothing:
it sends the figures, phase and time that the training thread gave. Most heartbeats are replaced, so
a heartbeat is made of them only when it is sent.

Example, with one second: forward at 0.0 s is sent at once; backward at 0.3 s and optimizer at 0.6 s
are held back. A rank that hangs in the optimizer is seen there from 1.0 s on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.messages import RankMessage


class HeartbeatSender:
    """Sends the messages of a rank in order."""

    def __init__(self, send: Callable[[RankMessage], None], *, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self._changed = threading.Condition()
        self._held: tuple[Heartbeat, Phase, float] | None = None
        self._last = -1e9
        self._thread: threading.Thread | None = None

    def send(
        self, figures: Heartbeat, *, phase: Phase, time_seconds: float, now: bool = False
    ) -> None:
        """Send a heartbeat, `now` or as soon as the rate allows.

        Args:
            figures: the heartbeat, but for its phase and time.
            phase: the phase that begins.
            time_seconds: monotonic clock.
            now: whether to ignore the rate.
        """
        with self._changed:
            if now or time_seconds - self._last >= self._seconds:
                self._deliver((figures, phase, time_seconds))
                return
            if self._held is None:
                self._changed.notify()
            self._held = figures, phase, time_seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="heartbeats", daemon=True)
                self._thread.start()

    def send_event(self, word: RankMessage) -> None:
        """Send an event, after a heartbeat that is held back."""
        with self._changed:
            if self._held is not None:
                self._deliver(self._held)
            self._send(word)

    def _deliver(self, held: tuple[Heartbeat, Phase, float]) -> None:
        self._held = None
        self._last = time.monotonic()
        figures, phase, time_seconds = held
        self._send(replace(figures, phase=phase, time_seconds=time_seconds))

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
