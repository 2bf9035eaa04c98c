"""Reports to the leader: heartbeats at intervals, faults at once.

A heartbeat shows the leader that this pod is alive, and the positions of its ranks. The answer
shows this pod that the leader is alive, and whether there is a newer record. A member does not stop
if the leader does not answer. If the leader is lost, the ranks fail by themselves. Only the
operator declares it lost, with a new generation.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from http import HTTPStatus
from typing import Final

from drumline_agent.api.record_delivery import fetch_newer_record
from drumline_agent.api.service import Service
from drumline_agent.base.events import AgentEvent, log
from drumline_agent.http.client import PeerUnreachableError, fetch
from drumline_agent.http.message import HttpRequest, HttpResponse
from drumline_agent.member.client_outbox import ClientOutbox
from drumline_agent.member.member import MemberAgent
from drumline_agent.protocol.client_messages import CLIENTS_PATH, ConnectionClosed
from drumline_agent.protocol.encoding import encode
from drumline_agent.protocol.member_reports import (
    FAULTS_PATH,
    MEMBER_HEARTBEAT_PATH,
    SILENT_AFTER_INTERVALS,
    Fault,
    MemberHeartbeat,
    heartbeat_interval_seconds,
)
from drumline_agent.protocol.membership import MAX_MESSAGE_BYTES
from drumline_agent.state.record_store import SignedRecord
from drumline_client.wire import ClientMessage
from drumline_contract import SIGNATURE_HEADER, ContractError, SilentMember, sign
from drumline_contract import json_fields as read

RETRY_SECONDS = 0.2
_TAKEN: Final = (HTTPStatus.OK, HTTPStatus.BAD_REQUEST)
"""Answers after which a report is not repeated: the leader has it, or cannot read it.

CONFLICT: that agent does not lead yet. UNAUTHORIZED: another job's pod has the leader's address.
"""


class LeaderReporter:
    """Reports to the leader of one record.

    Args:
        service: settings, records and status of this agent.
        member: source of faults and heartbeats.
        signed: the signed generation record.
    """

    def __init__(self, *, service: Service, member: MemberAgent, signed: SignedRecord) -> None:
        self._service = service
        self._member = member
        self._signed = signed
        self._leader = signed.record.store_member
        self._faults: asyncio.Queue[Fault] = asyncio.Queue()
        self._said = ClientOutbox()
        self._interval = heartbeat_interval_seconds(signed.record)
        self._heard_at = time.monotonic()

    def report(self, fault: Fault) -> None:
        """Report a fault as soon as the leader can be reached."""
        self._faults.put_nowait(fault)

    async def all_reported(self) -> None:
        """Return once the leader has heard of every fault."""
        await self._faults.join()

    def pass_on(self, rank: int, message: ClientMessage | ConnectionClosed) -> None:
        """Pass on what a rank's client has said, in the order of arrival."""
        status = self._service.status
        self._said.put((status.generation, status.attempt), rank, message)

    def last_heard(self) -> dict[int, float]:
        """Return when the leader last answered, by index, in seconds since the epoch."""
        return {self._leader.index: time.time() - (time.monotonic() - self._heard_at)}

    async def run(self) -> None:
        """Send heartbeats and faults until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_heartbeats())
            group.create_task(self.report_all())
            group.create_task(self._pass_all_on())

    async def _send_heartbeats(self) -> None:
        changes, seen = self._member.ranks.changes, 0
        while True:
            try:
                await self._send_heartbeat()
                self._heard_at = time.monotonic()
            except PeerUnreachableError:
                pass  # `_publish_silence` counts it
            self._publish_silence()
            # At once after a change, so that the leader learns of exits without delay.
            seen = await changes.wait_for_change(self._interval, after=seen)

    async def _send_heartbeat(self) -> None:
        status = self._service.status
        heartbeat = MemberHeartbeat(
            index=self._service.settings.index,
            generation=status.generation,
            attempt=status.attempt,
            ranks=self._member.ranks.views(),
        )
        answer = await self._put(MEMBER_HEARTBEAT_PATH, encode(heartbeat), signed_as=b"beat")
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return
        # This pod may have missed the operator's delivery of a newer record.
        if _known_generation(answer) > self._signed.generation:
            await fetch_newer_record(
                self._service.records,
                self._signed,
                token=self._service.settings.token,
                port=self._service.settings.port,
            )

    def _publish_silence(self) -> None:
        status, silent = self._service.status, time.monotonic() - self._heard_at
        if silent < SILENT_AFTER_INTERVALS * self._interval:
            status.silent_members = ()
        else:
            if not status.silent_members:
                log(
                    AgentEvent.MEMBER_SILENT, index=self._leader.index, address=self._leader.address
                )
            status.silent_members = (
                SilentMember(index=self._leader.index, seconds=round(silent, 2)),
            )
        status.publish()

    async def report_all(self) -> None:
        """Report every fault in turn, until cancelled."""
        while True:
            body = encode(await self._faults.get())
            while True:
                with suppress(PeerUnreachableError):
                    answer = await self._put(FAULTS_PATH, body, signed_as=b"fault")
                    if answer.status in _TAKEN:
                        break
                await asyncio.sleep(RETRY_SECONDS)
            self._faults.task_done()

    async def _pass_all_on(self) -> None:
        """Pass on what clients say, until cancelled: their steps in batches, all else at once."""
        while True:
            await self._said.wait(self._interval / 2)
            messages = self._said.batch(index=self._service.settings.index)
            # A batch is repeated until it is accepted, because the order of messages matters.
            while messages is not None:
                with suppress(PeerUnreachableError):
                    answer = await self._put(CLIENTS_PATH, encode(messages), signed_as=b"clients")
                    if answer.status in _TAKEN:
                        messages = self._said.batch(index=self._service.settings.index)
                        continue
                await asyncio.sleep(RETRY_SECONDS)

    async def _put(self, path: str, body: bytes, *, signed_as: bytes) -> HttpResponse:
        settings = self._service.settings
        headers = {SIGNATURE_HEADER: sign(settings.token, signed_as, body)}
        return await fetch(
            HttpRequest(method="PUT", path=path, headers=headers, body=body),
            address=self._leader.address,
            port=settings.port,
        )


def _known_generation(answer: HttpResponse) -> int:
    """Return the generation in the answer to a heartbeat.

    Raises:
        PeerUnreachableError: the leader did not answer, but another server at its address.
    """
    try:
        generation = read.json_object(answer.body, MAX_MESSAGE_BYTES).get("generation")
    except ContractError:
        generation = None
    if answer.status != HTTPStatus.OK or not isinstance(generation, int):
        raise PeerUnreachableError(f"another server has the leader's address: {answer.status}")
    return generation
