"""Define the state that survives a restart: known outlooks and pending messages.

The record is bounded to fit one ConfigMap: 15,000 jobs with random UIDs and 200 messages of
incompressible text need less than 1 MiB. Pure.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from drumline_addons.notifications.events import KnownOutlook, OutlookChange

MOST_JOBS: Final = 15_000
FREE_FACTOR: Final = 3
"""A namespace may have this number of jobs for each place that is free: one alone has 11,250."""
MOST_PENDING: Final = 200
MOST_PENDING_OF_A_NAMESPACE: Final = 100
"""Limit per namespace, so that a tenant with many jobs leaves space for the others."""
MOST_PENDING_OF_A_JOB: Final = 20
"""Limit per job, so that a job that changes all the time leaves space for the other jobs."""
_MOST_UNPACKED_BYTES: Final = 8 * 1024 * 1024
_VERSION: Final = 1


class UnreadableRecordError(ValueError):
    """A record that this version cannot read."""


class PendingMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that was not accepted yet.

    Attributes:
        change: content of the message.
        channel: destination.
        recipient: mail recipient, if the job chose one.
    """

    change: OutlookChange
    channel: str
    recipient: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Return a key that is equal for equal messages."""
        return (self.change.id, self.channel, self.recipient)


class SentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The whole record.

    Attributes:
        version: version of the format.
        known: outlooks by UID.
        pending: messages that no destination has accepted yet.
        low_budgets: keys of budgets that were reported as low: a queue's UID, and for one of its
            users the UID, a slash and the user.
    """

    version: int = _VERSION
    known: dict[str, KnownOutlook]
    pending: list[PendingMessage] = []
    low_budgets: list[str] = []


_decode: Final = msgspec.json.Decoder(SentRecord).decode


def packed(record: SentRecord) -> bytes:
    """Return the record as bytes."""
    return zlib.compress(msgspec.json.encode(record), level=6)


def unpacked(raw: bytes) -> SentRecord:
    """Return the record from bytes.

    Raises:
        UnreadableRecordError: the bytes contain no record.
    """
    unpacker = zlib.decompressobj()
    try:
        body = unpacker.decompress(raw, _MOST_UNPACKED_BYTES)
        record = _decode(body)
    except (zlib.error, msgspec.MsgspecError, RecursionError) as error:
        raise UnreadableRecordError(f"{type(error).__name__}: {error}") from None
    if record.version != _VERSION:
        raise UnreadableRecordError(f"version {record.version}, but this notifier reads {_VERSION}")
    return record
