"""Deliver messages with one queue and one worker per channel.

A channel that rejects messages does not delay the others. Messages stay in order while the channel
accepts them. A message that fails moves to the end of the queue, and the channel pauses for up to
five minutes. A message is dropped if the channel rejects it permanently, or six hours after its
change. Each drop is logged.
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

# News older than this no longer helps its reader.
MOST_AGE_SECONDS: Final = 6 * 3600.0
ATTEMPT_SECONDS: Final = 15.0
"""Timeout of one attempt."""
_FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 300.0


class DeliveryError(Exception):
    """A message was not accepted.

    Attributes:
        why: text for the log, without addresses, secrets or text from the other side.
        is_final: whether a retry cannot help.
        after_seconds: pause that the other side requested.
    """

    def __init__(self, why: str, *, is_final: bool = False, after_seconds: float = 0.0) -> None:
        super().__init__(why)
        self.why = why
        self.is_final = is_final
        self.after_seconds = after_seconds


class ChannelSender(Protocol):
    """Sender of one message, for each of the three kinds of channels."""

    async def send(self, message: PendingMessage) -> None:
        """Send a change within `ATTEMPT_SECONDS`.

        Raises:
            DeliveryError: the message was not accepted.
        """


class ChannelWorker:
    """Queue of one channel, for one event loop.

    Args:
        channel: name of the channel.
        sender: sender of messages.
        settled: called with each message that was accepted or dropped.
        metrics: metrics of the notifier.
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
        """Error of the last attempt. None after a success."""

    def add(self, message: PendingMessage) -> None:
        """Append a message to the queue."""
        self._queue.append(message)
        self._changed.set()

    def finish(self) -> None:
        """Let `run` return after the current attempt, because it may have been accepted."""
        self._is_finishing = True
        self._changed.set()

    async def run(self) -> None:
        """Send messages until `finish`."""
        while not self._is_finishing:
            self._changed.clear()
            pause = await self.step()
            # A pause of 0 means that an attempt was made, so the queue is looked at again.
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
            Seconds until the next step is due. None: wait for a message.
        """
        # Old messages first: they must not take the attempt of a new one.
        self._give_up_old()
        if not self._queue:
            return None
        now = self._clock()
        if now < self._not_before:
            return self._not_before - now
        # Popped before the send. A failure appends it at the end, so one bad message blocks no
        # other.
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
        # A final error does not pause the channel, because other messages may be accepted.
        if error.is_final:
            self._give_up(message, error.why)
            return
        self._failures += 1
        # The exponent is bounded, because the number of failures is not.
        backoff = _FIRST_PAUSE_SECONDS * 2 ** min(self._failures - 1, 16)
        pause = min(LONGEST_PAUSE_SECONDS, max(backoff, error.after_seconds))
        self._not_before = self._clock() + pause
        self._queue.append(message)
        fields = _fields(message)
        log.warning("notification_refused", why=error.why, again_in_seconds=pause, **fields)

    def _give_up_old(self) -> None:
        oldest = self._clock() - MOST_AGE_SECONDS
        old = [message for message in self._queue if message.change.at < oldest]
        # A copy of the matches, because the loop removes from the queue.
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
