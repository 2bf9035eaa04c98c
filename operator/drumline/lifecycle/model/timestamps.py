"""Convert times of Kubernetes (RFC 3339, UTC) from and to seconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_LAST: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
"""The last time that can be written as RFC 3339."""


def timestamp(seconds: float) -> str:
    """Return seconds since the epoch as Kubernetes writes time: RFC 3339, whole seconds, UTC."""
    return datetime.fromtimestamp(int(seconds), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def precise_timestamp(seconds: float) -> str:
    """Return a timestamp with milliseconds, for phases of an incident."""
    moment = datetime.fromtimestamp(round(seconds, 3), tz=UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def order_timestamp(seconds: float) -> str:
    """Return a timestamp with microseconds, for events of one second with an order."""
    moment = datetime.fromtimestamp(round(seconds, 6), tz=UTC)
    return moment.isoformat().replace("+00:00", "Z")


def parse_timestamp(text: str) -> float:
    """Parse an RFC 3339 time, also with fractions of a second.

    A time after year 9999 in UTC, which only an offset can make, counts as the end of that year.

    Raises:
        ValueError: the text is not an RFC 3339 time.
    """
    return min(datetime.fromisoformat(text).timestamp(), _LAST)
