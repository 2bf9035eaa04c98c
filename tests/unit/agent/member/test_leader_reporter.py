"""Reports reach a leader that is too busy to answer at first, or does not lead yet."""

from __future__ import annotations

import asyncio
import random
import time
from types import SimpleNamespace
from typing import cast

import pytest

from drumline_agent.api.record_delivery import send_until_answered
from drumline_agent.api.service import Service
from drumline_agent.base.change_notifier import ChangeNotifier
from drumline_agent.http.message import HttpRequest, HttpResponse
from drumline_agent.http.server import HttpServer
from drumline_agent.member.leader_reporter import LeaderReporter
from drumline_agent.member.member import MemberAgent
from drumline_agent.protocol.member_reports import Fault, parse_fault
from drumline_agent.state.rank_status import RankStatusStore
from drumline_agent.state.record_store import SignedRecord
from drumline_contract import FaultClass, GenerationRecord, Member
from tests.patience import HANG_SECONDS
from tests.unit.agent.settings_builder import agent_settings

FAULT = Fault(
    generation=1,
    attempt=0,
    index=1,
    fault_class=FaultClass.APPLICATION,
    cause="rank 1: boom",
    at=1.0,
    detected_at=1.0,
    exit_code=1,
)
SETTINGS = agent_settings(index=1)


class Peer:
    """Answers each request with the next of these, and all later ones with the last."""

    def __init__(self, *statuses: int, body: bytes = b"{}") -> None:
        address = "127.{}.{}.1".format(*random.sample(range(1, 255), 2))
        self.member = Member(index=0, pod_uid="p", address=address, host="h", ranks=1)
        self.server = HttpServer(self._answer, address=address, port=SETTINGS.port)
        self.bodies: list[bytes] = []
        self.heard = asyncio.Event()
        self._statuses = list(statuses)
        self._body = body

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        self.bodies.append(request.body)
        status = self._statuses[min(len(self.bodies), len(self._statuses)) - 1]
        if len(self.bodies) >= len(self._statuses):
            self.heard.set()
        return HttpResponse(status=status, body=self._body)


@pytest.mark.parametrize("status", [503, 409, 401, 404])
async def test_a_fault_is_reported_until_the_leader_has_it(status: int) -> None:
    peer = Peer(status, 200)
    record = GenerationRecord(job_uid="job", generation=1, epoch=1, members=(peer.member,))
    reporter = LeaderReporter(
        service=cast("Service", SimpleNamespace(settings=SETTINGS)),
        member=cast("MemberAgent", None),
        signed=SignedRecord(record=record, body=b"", signature=""),
    )
    reporter.report(FAULT)
    async with peer.server, asyncio.timeout(HANG_SECONDS):
        reporting = asyncio.create_task(reporter.report_all())
        await peer.heard.wait()
        reporting.cancel()
    assert [parse_fault(body) for body in peer.bodies] == [FAULT, FAULT]


@pytest.mark.parametrize(
    ("status", "body", "hears"),
    [
        (200, b'{"generation": 1}', True),
        (503, b"", True),
        (401, b"wrong signature", False),
        (200, b"<html>", False),
        (200, b"[]", False),
        (200, b"{}", False),
    ],
)
async def test_another_server_at_the_address_of_the_leader_is_not_the_leader(
    status: int, body: bytes, hears: bool
) -> None:
    peer = Peer(status, status, body=body)
    record = GenerationRecord(job_uid="job", generation=1, epoch=1, members=(peer.member,))
    board = RankStatusStore(SETTINGS)
    reporter = LeaderReporter(
        service=cast("Service", SimpleNamespace(settings=SETTINGS, status=board)),
        member=cast(
            "MemberAgent",
            SimpleNamespace(ranks=SimpleNamespace(changes=ChangeNotifier(), views=tuple)),
        ),
        signed=SignedRecord(record=record, body=b"", signature=""),
    )
    async with peer.server, asyncio.timeout(HANG_SECONDS):
        before = time.time()
        running = asyncio.create_task(reporter.run())
        await peer.heard.wait()
        assert not running.done()
        running.cancel()
    assert (reporter.last_heard()[0] > before) is hears


async def test_a_notice_is_handed_on_until_the_member_takes_or_refuses_it() -> None:
    peer = Peer(503, 403)
    request = HttpRequest(method="PUT", path="/v1/notice", headers={}, body=b"{}")
    async with peer.server, asyncio.timeout(HANG_SECONDS):
        await send_until_answered(request, to=peer.member, port=SETTINGS.port)
    assert len(peer.bodies) == 2
