"""Times as Kubernetes writes them (RFC 3339, UTC) from and to seconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as Kubernetes writes time (RFC 3339, whole seconds, UTC)."""
    return datetime.fromtimestamp(int(seconds), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def precise_timestamp(seconds: float) -> str:
    """The same with milliseconds, where phases are counted from it."""
    moment = datetime.fromtimestamp(round(seconds, 3), tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def order_timestamp(seconds: float) -> str:
    """The same with microseconds, where events of one second have an order; none at a second."""
    moment = datetime.fromtimestamp(round(seconds, 6), tz=UTC)
    return moment.isoformat().replace("+00:00", "Z")


def parse_timestamp(text: str) -> float:
    """Inverse of `timestamp`; accepts fractions of a second too.

    Raises:
        ValueError: not an RFC 3339 time.
    """
    return datetime.fromisoformat(text).timestamp()
