"""A queue and a worker for each channel: tries again, and gives up with a line in the log.

A channel that refuses delays no other. Its queue is in order as long as it accepts; a message that
fails goes to the end, so that it never holds up the others, and the channel pauses, up to five
minutes. A message is given up when the channel says that it never will accept it, and six hours
after the change that it is about.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from drumline.telemetry import logs
from drumline.telemetry.notifier_metrics import ChannelMetrics
from drumline_addons.notifications.record import PendingMessage

log = logs.get("drumline_addons.notifications.delivery")

MOST_AGE_SECONDS: Final = 6 * 3600.0
ATTEMPT_SECONDS: Final = 15.0
"""Of one attempt."""
_FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 300.0


class DeliveryError(Exception):
    """A message was not accepted.

    Attributes:
        why: what is logged: no address, no secret, nothing that the other side wrote.
        is_final: whether trying again cannot help.
        after_seconds: for how long the other side asked to be left alone.
    """

    def __init__(self, why: str, *, is_final: bool = False, after_seconds: float = 0.0) -> None:
        super().__init__(why)
        self.why = why
        self.is_final = is_final
        self.after_seconds = after_seconds


class ChannelSender(Protocol):
    """Sends one message; the three kinds of channels."""

    async def send(self, message: PendingMessage) -> None:
        """Send it, within `ATTEMPT_SECONDS`.

        Raises:
            DeliveryError: It was not accepted.
        """


class ChannelWorker:
    """The queue of one channel, for one event loop.

    Args:
        channel: its name.
        sender: sends.
        settled: called with each message that was accepted or given up.
        metrics: counts what becomes of messages.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        channel: str,
        *,
        sender: ChannelSender,
        settled: Callable[[PendingMessage], None],
        metrics: ChannelMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._channel = channel
        self._sender = sender
        self._settled = settled
        self._metrics = metrics
        self._clock = clock
        self._queue: deque[PendingMessage] = deque()
        self._changed = asyncio.Event()
        self._failures = 0
        self._not_before = 0.0
        self._is_finishing = False
        self.problem: str | None = None
        """Why the last attempt failed; None after one that did not."""

    def add(self, message: PendingMessage) -> None:
        """Send this, after those before."""
        self._queue.append(message)
        self._changed.set()

    def finish(self) -> None:
        """Let `run` return once no attempt is under way: it may have been accepted."""
        self._is_finishing = True
        self._changed.set()

    async def run(self) -> None:
        """Send until `finish`."""
        while not self._is_finishing:
            self._changed.clear()
            pause = await self.step()
            if pause == 0.0 or self._is_finishing:
                continue
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def step(self) -> float | None:
        """Try the first message, unless the channel pauses.

        Returns:
            In how many seconds the next step is due; None: when there is a message.
        """
        self._give_up_old()
        if not self._queue:
            return None
        now = self._clock()
        if now < self._not_before:
            return self._not_before - now
        message = self._queue.popleft()
        try:
            await self._sender.send(message)
        except DeliveryError as error:
            self._failed(message, error)
        else:
            self._failures, self.problem = 0, None
            self._metrics.sent.inc()
            log.info("notification_sent", **_fields(message))
            self._settled(message)
        return 0.0

    def _failed(self, message: PendingMessage, error: DeliveryError) -> None:
        self.problem = f"channel {self._channel}: {error.why}"
        self._metrics.failed.inc()
        if error.is_final:
            self._give_up(message, error.why)
            return
        self._failures += 1
        backoff = _FIRST_PAUSE_SECONDS * 2 ** min(self._failures - 1, 16)
        pause = min(LONGEST_PAUSE_SECONDS, max(backoff, error.after_seconds))
        self._not_before = self._clock() + pause
        self._queue.append(message)
        fields = _fields(message)
        log.warning("notification_refused", why=error.why, again_in_seconds=pause, **fields)

    def _give_up_old(self) -> None:
        oldest = self._clock() - MOST_AGE_SECONDS
        old = [message for message in self._queue if message.change.at < oldest]
        for message in old:
            self._queue.remove(message)
            self._give_up(message, f"not accepted within {MOST_AGE_SECONDS / 3600:g} hours")

    def _give_up(self, message: PendingMessage, why: str) -> None:
        self._metrics.dropped.inc()
        log.error("notification_given_up", why=why, **_fields(message))
        self._settled(message)


def _fields(message: PendingMessage) -> dict[str, str]:
    change = message.change
    return {
        "id": change.id,
        "kind": change.kind,
        "job": f"{change.namespace}/{change.name}",
        "channel": message.channel,
    }
