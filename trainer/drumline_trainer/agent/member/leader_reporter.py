"""A member's way to its leader: beats at intervals, faults at once.

A beat tells the leader that this pod lives and where its ranks stand; its answer tells this pod
that the leader lives, and whether there is a newer record. A leader that does not answer is no
reason to stop: the ranks notice by themselves if it is gone, and only the operator can tell whether
it is, by a new generation.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

from drumline_trainer.agent.api.record_delivery import fetch_newer_record
from drumline_trainer.agent.base.events import AgentEvent, log
from drumline_trainer.agent.http.client import PeerUnreachableError, fetch
from drumline_trainer.agent.http.message import HttpRequest
from drumline_trainer.agent.leader.member_heartbeats import (
    SILENT_AFTER_INTERVALS,
    heartbeat_interval_seconds,
)
from drumline_trainer.agent.protocol.leader_orders import encode
from drumline_trainer.agent.protocol.member_reports import (
    FAULTS_PATH,
    MEMBER_HEARTBEAT_PATH,
    Fault,
    MemberHeartbeat,
)
from drumline_trainer.contract import SIGNATURE_HEADER, SilentMember, sign

if TYPE_CHECKING:
    from drumline_trainer.agent.api.service import Service
    from drumline_trainer.agent.http.message import HttpResponse
    from drumline_trainer.agent.member.member import MemberAgent
    from drumline_trainer.agent.state.record_store import SignedRecord

RETRY_SECONDS = 0.2


class LeaderReporter:
    """To the leader of one record."""

    def __init__(self, *, service: Service, member: MemberAgent, signed: SignedRecord) -> None:
        self._service = service
        self._member = member
        self._signed = signed
        self._leader = signed.record.store_member
        self._faults: asyncio.Queue[Fault] = asyncio.Queue()
        self._interval = heartbeat_interval_seconds(signed.record)
        self._heard_at = time.monotonic()

    def report(self, fault: Fault) -> None:
        """Tell the leader as soon as it can be reached."""
        self._faults.put_nowait(fault)

    def last_heard(self) -> dict[int, float]:
        """When the leader was heard, in seconds since the epoch."""
        return {self._leader.index: time.time() - (time.monotonic() - self._heard_at)}

    async def run(self) -> None:
        """Beat and report until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beat_for_ever())
            group.create_task(self.report_all())

    async def _beat_for_ever(self) -> None:
        bell, seen = self._member.ranks.changes, 0
        while True:
            try:
                await self._beat()
                self._heard_at = time.monotonic()
            except PeerUnreachableError:
                pass  # its silence is counted below
            self._note_silence()
            seen = await bell.wait_for_change(self._interval, after=seen)

    async def _beat(self) -> None:
        board = self._service.status
        beat = MemberHeartbeat(
            index=self._service.settings.index,
            generation=board.generation,
            attempt=board.attempt,
            ranks=self._member.ranks.views(),
        )
        answer = await self._put(MEMBER_HEARTBEAT_PATH, encode(beat), signed_as=b"beat")
        if answer.status != HTTPStatus.OK:
            return
        if json.loads(answer.body).get("generation", 0) > self._signed.generation:
            await fetch_newer_record(
                self._service.records,
                self._signed,
                token=self._service.settings.token,
                port=self._service.settings.port,
            )

    def _note_silence(self) -> None:
        board, silent = self._service.status, time.monotonic() - self._heard_at
        if silent < SILENT_AFTER_INTERVALS * self._interval:
            board.silent_members = ()
        else:
            if not board.silent_members:
                log(
                    AgentEvent.MEMBER_SILENT, index=self._leader.index, address=self._leader.address
                )
            board.silent_members = (
                SilentMember(index=self._leader.index, seconds=round(silent, 2)),
            )
        board.publish()

    async def report_all(self) -> None:
        """Tell the leader of every fault, one after the other, until cancelled."""
        while True:
            body = encode(await self._faults.get())
            while True:
                with suppress(PeerUnreachableError):
                    answer = await self._put(FAULTS_PATH, body, signed_as=b"fault")
                    if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR and (
                        answer.status != HTTPStatus.CONFLICT
                    ):
                        break  # it has it, or refuses it; is neither busy nor yet to lead
                await asyncio.sleep(RETRY_SECONDS)

    async def _put(self, path: str, body: bytes, *, signed_as: bytes) -> HttpResponse:
        settings = self._service.settings
        headers = {SIGNATURE_HEADER: sign(settings.token, signed_as, body)}
        return await fetch(
            HttpRequest(method="PUT", path=path, headers=headers, body=body),
            address=self._leader.address,
            port=settings.port,
        )
