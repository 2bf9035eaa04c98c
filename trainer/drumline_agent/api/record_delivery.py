"""Delivery of a record to every agent: the store's agent pushes it, the others pull newer ones.

The operator pushes a record once, to the store's agent, which repeats it to every other member
until it is acknowledged. An agent that learns of a newer generation (`member.leader_reporter`)
fetches its record, so a lost push does no harm.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus

from drumline_agent.base.events import AgentEvent, log
from drumline_agent.http.client import PeerUnreachableError, fetch
from drumline_agent.http.message import HttpRequest
from drumline_agent.state.record_store import RecordStore, SignedRecord
from drumline_contract import SIGNATURE_HEADER, Member, sign

RECORD_PATH = "/v1/record"
CONCURRENCY = 32
FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 2.0


async def deliver_to_all(signed: SignedRecord, *, port: int) -> None:
    """Push a record to every member but the store's, until each has answered."""
    gate = asyncio.Semaphore(CONCURRENCY)
    async with asyncio.TaskGroup() as group:
        for member in signed.record.members:
            if member != signed.record.store_member:
                group.create_task(deliver(signed, to=member, port=port, gate=gate))


async def deliver(signed: SignedRecord, *, to: Member, port: int, gate: asyncio.Semaphore) -> None:
    """Push a record to a member until it has answered, with whatever status.

    Args:
        signed: the signed generation record.
        to: the member to send to.
        port: port of the agents.
        gate: bounds the number of requests at a time.
    """
    request = HttpRequest(
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
        except PeerUnreachableError:
            answer = None
        if answer is not None and answer.status == HTTPStatus.OK:
            log(AgentEvent.RECORD_DELIVERED, index=to.index, generation=signed.generation)
            return
        if answer is not None and answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            # It has a newer record or is of another job: only the operator can change that.
            reason = answer.body[:256].decode(errors="replace")
            log(
                AgentEvent.RECORD_UNDELIVERABLE, index=to.index, status=answer.status, reason=reason
            )
            return
        await asyncio.sleep(wait_seconds)
        wait_seconds = min(2 * wait_seconds, LAST_RETRY_SECONDS)


async def send_until_answered(request: HttpRequest, *, to: Member, port: int) -> None:
    """Send a request until the member accepts or rejects it; 5xx is sent again.

    Args:
        request: the request to send.
        to: the member to send to.
        port: port of the agents.
    """
    while True:
        with suppress(PeerUnreachableError):
            answer = await fetch(request, address=to.address, port=port)
            if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                return
        await asyncio.sleep(FIRST_RETRY_SECONDS)


async def fetch_newer_record(
    records: RecordStore, signed: SignedRecord, *, token: bytes, port: int
) -> None:
    """Fetch a newer record from the agent of the store member, and offer it to `records`.

    The agent answers without a record if it has none that is newer than `signed`.

    Args:
        records: holds the current record.
        signed: the signed generation record. It names the store member.
        token: the job's token, which signs messages.
        port: port of the agents.

    Raises:
        Unreachable: the agent does not answer.
    """
    request = HttpRequest(
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
        records.offer(answer.body, signature=answer.headers.get(SIGNATURE_HEADER.lower(), ""))
