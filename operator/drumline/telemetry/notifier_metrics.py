"""Metrics of the notifier: outcomes of messages, and waiting messages, by channel.

`kind` is slack, webhook or mail; the owner's configuration names at most a hundred channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import Counter, Gauge, generate_latest

from drumline.telemetry.registry import process_registry

# Channels come from the owner's configuration, so their number is bounded.
_CHANNEL = ("channel", "kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMetrics:
    """Counters of one channel.

    Attributes:
        sent: messages that it accepted.
        failed: attempts that it did not accept.
        dropped: messages that were given up.
    """

    sent: Counter
    failed: Counter
    dropped: Counter


class NotifierMetrics:
    """Counters and gauges of one notifier."""

    def __init__(self) -> None:
        self.registry = registry = process_registry()
        self._sent = Counter(
            "drumline_notifier_messages_sent_total",
            "Messages that a channel accepted.",
            _CHANNEL,
            registry=registry,
        )
        self._failed = Counter(
            "drumline_notifier_attempts_failed_total",
            "Attempts that a channel did not accept. Most are retried.",
            _CHANNEL,
            registry=registry,
        )
        self._dropped = Counter(
            "drumline_notifier_messages_dropped_total",
            "Messages that were dropped: rejected permanently, too old, or too many.",
            _CHANNEL,
            registry=registry,
        )
        self._pending = Gauge(
            # Pending messages are also in the record, so this gauge survives a restart of the
            # notifier.
            "drumline_notifier_pending_messages",
            "Messages that no channel has accepted yet.",
            _CHANNEL,
            registry=registry,
        )
        # The oldest message tells a channel that rejects all from one that is only busy.
        self._oldest_seconds = Gauge(
            "drumline_notifier_oldest_message_seconds",
            "Age of the change that the oldest pending message reports. 0 without a pending"
            " message.",
            _CHANNEL,
            registry=registry,
        )
        # One counter without labels: the record is one object for all channels.
        self.record_failures = Counter(
            "drumline_notifier_record_failures_total",
            "Failed writes of the record. No new messages are sent until a write succeeds.",
            registry=registry,
        )

    def channel(self, name: str, *, kind: str) -> ChannelMetrics:
        """Return the counters of one channel, which begin at 0."""
        # `labels` creates the series at 0, so an alert sees the first failure.
        labels = (name, kind)
        return ChannelMetrics(
            sent=self._sent.labels(*labels),
            failed=self._failed.labels(*labels),
            dropped=self._dropped.labels(*labels),
        )

    def watch_queue(
        self, name: str, *, kind: str, pending: Callable[[], int], oldest: Callable[[], float]
    ) -> None:
        """Ask these at each scrape: how many messages are pending, and the age of the oldest.

        Args:
            name: name of the receiver.
            kind: kind of the receiver.
            pending: number of waiting messages.
            oldest: age of the oldest message in seconds.
        """
        # A function instead of a value: it is only called at a scrape.
        self._pending.labels(name, kind).set_function(pending)
        self._oldest_seconds.labels(name, kind).set_function(oldest)

    def render(self) -> bytes:
        """Return the exposition text of all metrics."""
        return generate_latest(self.registry)
