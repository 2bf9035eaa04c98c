"""What is remembered over a restart: the known outlooks, and messages that are still to be sent.

Bounded, so that it fits one ConfigMap: 15,000 jobs of random uids and 200 messages of text that
does not compress are below its 1 MiB. Pure.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from drumline_addons.notifications.events import KnownOutlook, OutlookChange

MOST_JOBS: Final = 15_000
MOST_PENDING: Final = 200
MOST_PENDING_OF_A_NAMESPACE: Final = 100
"""So that a tenant with a storm of jobs leaves room for all others."""
MOST_PENDING_OF_A_JOB: Final = 20
"""So that a job whose outlook changes all the time leaves room for the others beside it."""
_MOST_UNPACKED_BYTES: Final = 8 * 1024 * 1024
_VERSION: Final = 1


class UnreadableRecordError(ValueError):
    """A record that this version cannot read."""


class PendingMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message on its way.

    Attributes:
        change: what it says.
        channel: where it goes.
        recipient: of mail, where the job chose it.
    """

    change: OutlookChange
    channel: str
    recipient: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """The same for the same message."""
        return (self.change.id, self.channel, self.recipient)


class SentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record as a whole.

    Attributes:
        version: of this form.
        known: by uid.
        pending: messages that no destination has accepted yet.
        low_budgets: keys of budgets of which it was said that they are low: a queue's uid, and for
            one of its users' the uid, a slash and the user.
    """

    version: int = _VERSION
    known: dict[str, KnownOutlook]
    pending: list[PendingMessage] = []
    low_budgets: list[str] = []


_decode: Final = msgspec.json.Decoder(SentRecord).decode


def packed(record: SentRecord) -> bytes:
    """The record as bytes."""
    return zlib.compress(msgspec.json.encode(record), level=6)


def unpacked(raw: bytes) -> SentRecord:
    """The record in such bytes.

    Raises:
        UnreadableRecordError: there is none in them.
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
