"""How a record reaches every agent: the store's agent pushes it, the others ask for newer ones.

The operator pushes a record once, to the store's agent. That one repeats it to each other member
until it is acknowledged. Once an agent has a record it also asks the store's agent for a newer one
at intervals, so that a lost push heals; the same question tells it that the store's agent lives.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING

from drumline_trainer.agent.events import Event, log
from drumline_trainer.agent.http_client import Unreachable, fetch
from drumline_trainer.agent.http_message import Request
from drumline_trainer.contract import SIGNATURE_HEADER, Member, sign

if TYPE_CHECKING:
    from drumline_trainer.agent.record_book import RecordBook, SignedRecord

RECORD_PATH = "/v1/record"
CONCURRENCY = 32
FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 2.0
POLL_SECONDS = 2.0
POLLS_PER_SECOND = 250
"""A store's agent answers at most so many polls; above 500 members the interval grows."""


async def deliver_to_all(signed: SignedRecord, *, port: int) -> None:
    """Push a record to every member but the store's, until each has answered."""
    gate = asyncio.Semaphore(CONCURRENCY)
    async with asyncio.TaskGroup() as group:
        for member in signed.record.members:
            if member != signed.record.store_member:
                group.create_task(_deliver(signed, to=member, port=port, gate=gate))


async def _deliver(signed: SignedRecord, *, to: Member, port: int, gate: asyncio.Semaphore) -> None:
    request = Request(
        method="PUT",
        path=RECORD_PATH,
        headers={SIGNATURE_HEADER: signed.signature},
        body=signed.body,
    )
    wait_seconds = FIRST_RETRY_SECONDS
    while True:
        try:
            async with gate:
                answer = await fetch(request, address=to.address, port=port)
        except Unreachable:
            answer = None
        if answer is not None and answer.status == HTTPStatus.OK:
            log(Event.RECORD_DELIVERED, index=to.index, generation=signed.generation)
            return
        if answer is not None and answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            # It knows better, or we do not belong together: only the operator can change that.
            reason = answer.body[:256].decode(errors="replace")
            log(Event.RECORD_UNDELIVERABLE, index=to.index, status=answer.status, reason=reason)
            return
        await asyncio.sleep(wait_seconds)
        wait_seconds = min(2 * wait_seconds, LAST_RETRY_SECONDS)


async def follow(
    book: RecordBook, signed: SignedRecord, *, token: bytes, port: int, lost_seconds: float
) -> str:
    """Offer the book whatever newer record the agent of this record's store has.

    Returns:
        Why, once that agent has been unreachable for `lost_seconds`.
    """
    clock = asyncio.get_running_loop().time
    interval_seconds = max(POLL_SECONDS, len(signed.record.members) / POLLS_PER_SECOND)
    answered = clock()
    reason = ""
    while clock() - answered < lost_seconds:
        try:
            await _ask(book, signed, token=token, port=port)
            answered = clock()
        except Unreachable as error:
            reason = str(error)
        await asyncio.sleep(interval_seconds)
    return f"the store's agent is unreachable: {reason}"


async def _ask(book: RecordBook, signed: SignedRecord, *, token: bytes, port: int) -> None:
    request = Request(
        method="GET",
        path=RECORD_PATH,
        headers={
            SIGNATURE_HEADER: sign(token, b"get", RECORD_PATH.encode()),
            "If-None-Match": f'"{signed.generation}"',
        },
    )
    store = signed.record.store_member
    answer = await fetch(request, address=store.address, port=port)
    if answer.status == HTTPStatus.OK:
        book.offer(answer.body, signature=answer.headers.get(SIGNATURE_HEADER.lower(), ""))
