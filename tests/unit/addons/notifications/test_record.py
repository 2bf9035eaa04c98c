"""What is remembered over a restart, and that it fits."""

from __future__ import annotations

import random
import uuid
import zlib

import msgspec
import pytest

from drumline_addons.notifications.events import KnownOutlook, Outlook
from drumline_addons.notifications.jobs import Culprit
from drumline_addons.notifications.record import (
    MOST_JOBS,
    MOST_PENDING,
    PendingMessage,
    SentRecord,
    UnreadableRecordError,
    packed,
    unpacked,
)
from tests.unit.addons.notifications.jobs import a_change

MOST_BYTES_OF_A_CONFIG_MAP = 1024 * 1024


def test_a_record_is_read_as_it_was_written() -> None:
    known = {
        "u-1": KnownOutlook(outlook=Outlook.PREEMPTED, at=7.0, promised_by=9.5, idle_said_at=6),
        "u-2": KnownOutlook(outlook=Outlook.FINISHED, at=8.0),
    }
    change = a_change(culprit=Culprit(cause="ECC", node="gpu-7", rank=3), since=3.0)
    pending = [PendingMessage(change=change, channel="mail", recipient="ada@example.com")]
    record = SentRecord(known=known, pending=pending)
    assert unpacked(packed(record)) == record


def test_the_largest_record_fits_a_config_map() -> None:
    """With random uids, and texts that hostile tenants have chosen so that nothing compresses."""
    seeded = random.Random(7)

    def text(characters: int) -> str:
        return "".join(chr(seeded.randrange(0x20000, 0x2A6D0)) for _ in range(characters))

    def uid() -> str:
        return str(uuid.UUID(int=seeded.getrandbits(128)))

    known = {
        uid(): KnownOutlook(
            outlook=seeded.choice(list(Outlook)),
            at=float(1_795_000_000 + seeded.randrange(10_000_000)),
            promised_by=float(1_795_000_000 + seeded.randrange(10_000_000)),
            idle_said_at=1_795_000_000 + seeded.randrange(10_000_000),
        )
        for _ in range(MOST_JOBS)
    }
    pending = [
        PendingMessage(
            change=a_change(
                id=uid(), uid=uid(), message=text(300), culprit=Culprit(cause=text(300))
            ),
            channel="slack",
        )
        for _ in range(MOST_PENDING)
    ]
    assert len(packed(SentRecord(known=known, pending=pending))) < MOST_BYTES_OF_A_CONFIG_MAP


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"no record",
        zlib.compress(b"[]"),
        zlib.compress(b'{"version": 2, "known": {}}'),
        zlib.compress(b" " * 16 * 1024 * 1024 + b'{"known": {}}'),
        zlib.compress(b"[" * 100_000),
    ],
)
def test_anything_else_is_refused(raw: bytes) -> None:
    with pytest.raises(UnreadableRecordError):
        unpacked(raw)


def test_the_form_is_as_small_as_it_is_meant_to_be() -> None:
    known = {"u": KnownOutlook(outlook=Outlook.RUNNING, at=7.0)}
    assert msgspec.json.encode(known) == b'{"u":["Running",7.0,null,false,null]}'


def test_a_record_of_an_older_version_is_read() -> None:
    raw = zlib.compress(b'{"version":1,"known":{"u":["Running",7.0,null]},"pending":[]}')
    assert unpacked(raw).known == {"u": KnownOutlook(outlook=Outlook.RUNNING, at=7.0)}
