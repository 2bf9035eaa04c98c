"""The hang monitor, with a member on the other side of the wire that the test plays."""

from __future__ import annotations

import asyncio
import random
from typing import cast

import pytest

from drumline_agent.http.message import HttpRequest, HttpResponse
from drumline_agent.http.server import HttpServer
from drumline_agent.leader import hang_monitor, order_sender
from drumline_agent.leader.hang_monitor import HangMonitor
from drumline_agent.leader.member_heartbeats import MemberHeartbeats
from drumline_agent.leader.order_sender import OrderSender
from drumline_agent.member.member import MemberAgent
from drumline_agent.processes.local_ranks import LocalRanks
from drumline_agent.processes.ranks import RankListener
from drumline_agent.processes.zygote_client import ZygoteClient
from drumline_agent.protocol import member_reports
from drumline_agent.protocol.leader_orders import Kill, parse_leader_order
from drumline_agent.protocol.member_reports import Fault, MemberHeartbeat, RankView, StepCompute
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import GenerationRecord, Member
from tests.patience import HANG_SECONDS
from tests.unit.agent.settings_builder import agent_settings

KILL = Kill(generation=1, attempt=0, ranks=[1], reason="silent")


class Gang:
    """The leader's pod without ranks, and member 1, whose rank 0 is behind its ranks 1 and 2."""

    def __init__(self) -> None:
        address = "127.{}.{}.1".format(*random.sample(range(1, 255), 2))
        settings = agent_settings(address=address)
        members = tuple(
            Member(index=i, pod_uid=f"p{i}", address=address, host=f"h{i}", ranks=3 * i)
            for i in range(2)
        )
        self.record = GenerationRecord(job_uid="job", generation=1, epoch=1, members=members)
        self.status = RankStatusStore(settings)
        self.heartbeats = MemberHeartbeats(self.record, own_index=0)
        self.orders = OrderSender(self.record, own=cast("MemberAgent", None), settings=settings)
        self.faults: asyncio.Queue[Fault] = asyncio.Queue()
        self.heard: asyncio.Queue[object] = asyncio.Queue()
        self.monitor = HangMonitor(
            record=self.record,
            heartbeats=self.heartbeats,
            status=self.status,
            ranks=LocalRanks(
                settings=settings,
                zygote=cast("ZygoteClient", None),
                status=self.status,
                listener=cast("RankListener", None),
            ),
            orders=self.orders,
            own_index=0,
            report=self.faults.put_nowait,
        )
        self.monitor.membership = (1, 0)
        self.server = HttpServer(self._answer, address=address, port=settings.port)
        self.answer_status = 200
        self.beats = 0

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        self.heard.put_nowait(parse_leader_order(request.body))
        return HttpResponse(status=self.answer_status, body=b"{}")

    def beat(self) -> None:
        self.beats += 1
        views = tuple(
            RankView(
                rank=rank,
                position=(7, 0, 5 if rank else 4),
                silent_seconds=3.0,
                patience_seconds=2.0,
                compute=StepCompute(step=self.beats, seconds=1.5 if rank == 2 else 1.0),
            )
            for rank in range(3)
        )
        self.heartbeats.record(MemberHeartbeat(index=1, generation=1, attempt=0, ranks=views))

    async def beat_for_ever(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(0.01)


@pytest.fixture
def gang(monkeypatch: pytest.MonkeyPatch) -> Gang:
    """All intervals are short; `kill` has its usual patience."""
    monkeypatch.setattr(hang_monitor, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(hang_monitor, "VERIFY_SECONDS", 0.05)
    monkeypatch.setattr(member_reports, "HEARTBEAT_SECONDS", 0.1)
    return Gang()


async def test_a_member_that_has_moved_on_is_asked_once(gang: Gang) -> None:
    gang.answer_status = 409
    async with gang.server, asyncio.timeout(HANG_SECONDS):
        assert await gang.orders.kill(KILL, gang.record.members[1]) is False
    assert gang.heard.qsize() == 1


async def test_whoever_is_dead_when_its_rank_is_to_be_killed_is_still_seen_to_be_silent(
    gang: Gang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_sender, "KILL_SECONDS", 0.1)
    monkeypatch.setattr(order_sender, "RETRY_SECONDS", 0.01)
    gang.answer_status = 503
    watching = asyncio.create_task(gang.monitor.run())
    beating = asyncio.create_task(gang.beat_for_ever())
    async with asyncio.timeout(HANG_SECONDS):
        async with gang.server:
            await gang.heard.get()
            beating.cancel()
        while not gang.status.silent_members:
            await gang.status.wait_for_other_version(gang.status.version)
    watching.cancel()
    assert [member.index for member in gang.status.silent_members] == [1]
    assert gang.monitor.membership == (1, 0), "nobody was killed: it is looked at again"


async def test_a_rank_that_not_even_a_kill_ends_breaks_the_attempt(gang: Gang) -> None:
    """Member 1 obeys, and nothing comes of it."""
    watching = asyncio.create_task(gang.monitor.run())
    beating = asyncio.create_task(gang.beat_for_ever())
    async with gang.server, asyncio.timeout(HANG_SECONDS):
        fault = await gang.faults.get()
        killed = await gang.heard.get()
    watching.cancel()
    beating.cancel()
    assert isinstance(killed, Kill)
    assert killed.ranks == [0]
    assert (fault.fault_class, fault.index, fault.rank, fault.step) == ("Hang", 1, 0, 7)
    assert fault.detected_at - fault.at >= 3.0
    assert gang.monitor.membership is None
    compared = gang.status.compute_points[-1]
    assert (compared.ranks, compared.ratios) == (3, (1.0, 1.0, 1.5))
