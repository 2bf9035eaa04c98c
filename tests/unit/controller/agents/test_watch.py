"""The watch of gangs: agents that answer, fall silent, die, or belong to another pod."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from drumline.controller.agents import allowance as allowances
from drumline.controller.agents import client as clients
from drumline.controller.agents import watch as watches
from drumline.controller.agents.client import AgentClient
from drumline.controller.agents.watch import AgentWatch, GangReport, MemberAddress, WatchedGang
from drumline_contract import FaultClass, Incident, NoticeAnswer, Progress, SilentMember
from tests.fake_agents import FakeAgent
from tests.hostile_agents import HostileAgent, always_news, every_other_time, silent
from tests.patience import HANG_SECONDS

TOKEN = b"a token"
_addresses = itertools.count(start=2)


@pytest.fixture
def agents() -> Iterator[list[FakeAgent]]:
    """Three agents of one job, on one port of three addresses."""
    started: list[FakeAgent] = []
    for index in range(3):
        number = next(_addresses)
        started.append(
            FakeAgent(
                f"127.0.{number // 250}.{number % 250 + 1}",
                token=TOKEN,
                job_uid="job",
                pod_uid=f"pod-{index}",
                index=index,
                port=started[0].port if started else 0,
            )
        )
        started[-1].change(generation=1)
    yield started
    for agent in started:
        with suppress(OSError):
            agent.die()


class Eye:
    """A watch and the keys it woke."""

    def __init__(self, watch: AgentWatch, woken: asyncio.Queue[str]) -> None:
        self.watch = watch
        self._woken = woken

    async def until(self, what: Callable[[GangReport], bool]) -> GangReport:
        """The first thing heard of which `what` holds, after a wake-up each."""
        while True:
            async with asyncio.timeout(HANG_SECONDS):
                while await self._woken.get() != "team/llama":
                    pass
            heard = self.watch.report("job")
            assert heard is not None
            if what(heard):
                return heard


@pytest.fixture
async def eye(agents: list[FakeAgent]) -> AsyncIterator[Eye]:
    woken: asyncio.Queue[str] = asyncio.Queue()
    async with (
        AgentClient(port=agents[0].port) as client,
        AgentWatch(agents=client, enqueue=woken.put_nowait, clock=time.monotonic) as watch,
    ):
        yield Eye(watch, woken)


def gang(agents: list[FakeAgent], *, lost_after: float = 5.0) -> WatchedGang:
    members = tuple(
        MemberAddress(index=index, pod_uid=f"pod-{index}", address=agent.address, pod_generation=1)
        for index, agent in enumerate(agents)
    )
    return WatchedGang(
        key="team/llama", uid="job", token=TOKEN, lost_after_seconds=lost_after, members=members
    )


def with_member(report: WatchedGang, index: int, **changes: object) -> WatchedGang:
    members = [replace(m, **changes) if m.index == index else m for m in report.members]
    return replace(report, members=tuple(members))


INCIDENT = Incident(
    generation=1,
    attempt=1,
    fault_class=FaultClass.APPLICATION,
    cause="rank 3: boom",
    fault_at=1.0,
    detected_at=2.0,
)


async def test_a_fault_that_was_mended_in_place_wakes_the_job(
    eye: Eye, agents: list[FakeAgent]
) -> None:
    eye.watch.follow(gang(agents))
    await eye.until(lambda heard: heard.status.incidents == ())
    agents[0].change(incidents=(INCIDENT,))
    await eye.until(lambda heard: heard.status.incidents == (INCIDENT,))


async def test_what_a_gang_waits_for_wakes_the_job(eye: Eye, agents: list[FakeAgent]) -> None:
    eye.watch.follow(gang(agents))
    await eye.until(lambda heard: heard.status.waiting_for == "")
    agents[0].change(waiting_for="no space left on device")
    await eye.until(lambda heard: heard.status.waiting_for == "no space left on device")


async def test_another_layout_wakes_the_job(eye: Eye, agents: list[FakeAgent]) -> None:
    eye.watch.follow(gang(agents))
    await eye.until(lambda heard: heard.status.progress.layout == "")
    agents[0].change(progress=Progress(step=7, layout="FSDP4"))
    await eye.until(lambda heard: heard.status.progress.layout == "FSDP4")


async def test_progress_is_kept_and_wakes_no_job(eye: Eye, agents: list[FakeAgent]) -> None:
    eye.watch.follow(gang(agents))
    await eye.until(lambda heard: heard.status.progress.step == 0)
    agents[0].change(progress=Progress(step=7, total_steps=10))
    version = agents[0].status.version
    await asyncio.to_thread(
        agents[0].wait_for, lambda agent: f"since={version}" in agent.requests[-1]
    )
    agents[0].change(notice=NoticeAnswer(id="n"))
    woken = await eye.until(lambda _: True)
    assert (woken.status.progress.step, woken.status.notice) == (7, NoticeAnswer(id="n"))


async def test_a_member_silent_to_its_peers_and_to_us_is_lost(
    eye: Eye, agents: list[FakeAgent]
) -> None:
    agents[2].die()
    eye.watch.follow(gang(agents))
    agents[0].change(silent=(SilentMember(index=2, seconds=6.0),))
    heard = await eye.until(lambda heard: bool(heard.lost))
    assert heard.lost == {"pod-2"}


async def test_a_member_that_answers_us_is_lost_only_when_its_peers_go_on_not_to_hear_it(
    eye: Eye, agents: list[FakeAgent]
) -> None:
    started = time.monotonic()
    eye.watch.follow(gang(agents, lost_after=0.2))
    agents[0].change(silent=(SilentMember(index=2, seconds=100.0),))
    heard = await eye.until(lambda heard: bool(heard.lost))
    assert heard.lost == {"pod-2"}
    assert agents[2].requests
    assert time.monotonic() - started > 0.6


async def test_a_leader_that_hears_no_member_that_answers_us_is_itself_lost(
    eye: Eye, agents: list[FakeAgent]
) -> None:
    eye.watch.follow(gang(agents, lost_after=0.1))
    await eye.until(lambda heard: heard.status.silent == ())
    agents[0].change(
        silent=(SilentMember(index=1, seconds=60.0), SilentMember(index=2, seconds=60.0))
    )
    heard = await eye.until(lambda heard: heard.lost != frozenset())
    assert heard.lost == {"pod-0"}


async def test_a_leader_that_was_frozen_itself_loses_no_member_when_it_resumes(
    eye: Eye, agents: list[FakeAgent]
) -> None:
    eye.watch.follow(gang(agents))
    everybody = (SilentMember(index=1, seconds=600.0), SilentMember(index=2, seconds=600.0))
    agents[0].change(silent=everybody, attempt=1)
    agents[0].change(notice=NoticeAnswer(id="n"))
    heard = await eye.until(lambda heard: heard.status.attempt == 1)
    assert heard.lost == frozenset()


async def test_a_short_silence_is_none(eye: Eye, agents: list[FakeAgent]) -> None:
    agents[2].die()
    agents[0].change(silent=(SilentMember(index=2, seconds=3.0),))
    eye.watch.follow(gang(agents))
    heard = await eye.until(lambda _: True)
    assert heard.lost == frozenset()


async def test_a_leader_that_its_deputy_does_not_hear_either_is_lost(
    eye: Eye, agents: list[FakeAgent]
) -> None:
    agents[0].die()
    agents[1].change(silent=(SilentMember(index=0, seconds=6.0),))
    eye.watch.follow(gang(agents))
    heard = await eye.until(lambda heard: bool(heard.lost))
    assert (heard.lost, heard.status.index) == ({"pod-0"}, 1)


async def test_a_leader_that_only_we_do_not_hear_is_not_lost(
    eye: Eye, agents: list[FakeAgent]
) -> None:
    agents[0].die()
    eye.watch.follow(gang(agents))
    heard = await eye.until(lambda heard: heard.status.index == 1)
    assert heard.lost == frozenset()


async def test_where_no_member_answers_only_members_on_nodes_not_ready_are_lost(
    eye: Eye, agents: list[FakeAgent]
) -> None:
    eye.watch.follow(gang(agents, lost_after=0.05))
    await eye.until(lambda _: True)
    for agent in agents:
        agent.die()
    eye.watch.follow(with_member(gang(agents, lost_after=0.05), 1, node_ready=False))
    heard = await eye.until(lambda heard: bool(heard.lost))
    assert heard.lost == {"pod-1"}


async def test_an_agent_of_another_pod_speaks_for_no_gang(
    eye: Eye, agents: list[FakeAgent]
) -> None:
    eye.watch.follow(with_member(gang(agents), 0, pod_uid="pod-new"))
    heard = await eye.until(lambda _: True)
    assert heard.status.pod_uid == "pod-1"


async def test_the_silence_of_a_predecessor_is_not_held_against_a_new_pod(
    eye: Eye, agents: list[FakeAgent]
) -> None:
    agents[2].die()
    agents[0].change(silent=(SilentMember(index=2, seconds=100.0),))
    eye.watch.follow(with_member(gang(agents), 2, pod_generation=2))
    assert (await eye.until(lambda _: True)).lost == frozenset()


async def test_a_pod_that_came_while_we_watched_cannot_have_been_silent_before(
    eye: Eye, agents: list[FakeAgent]
) -> None:
    patient = gang(agents, lost_after=600.0)
    eye.watch.follow(with_member(patient, 2, pod_uid="pod-before"))
    await eye.until(lambda _: True)
    eye.watch.follow(patient)
    agents[2].die()
    agents[0].change(silent=(SilentMember(index=2, seconds=10_000.0),), attempt=1)
    agents[0].change(notice=NoticeAnswer(id="n"))
    heard = await eye.until(lambda heard: heard.status.attempt == 1)
    assert heard.lost == frozenset()


async def test_a_gang_that_is_not_watched_any_more_is_not_asked(
    eye: Eye, agents: list[FakeAgent]
) -> None:
    eye.watch.follow(gang(agents))
    await eye.until(lambda _: True)
    eye.watch.unfollow("job")
    assert (eye.watch.report("job"), len(eye.watch)) == (None, 0)


def hostile_gang(uid: str, agent: HostileAgent) -> WatchedGang:
    member = MemberAddress(index=0, pod_uid="pod", address=agent.address, pod_generation=1)
    return WatchedGang(
        key=f"hostile/{uid}", uid=uid, token=TOKEN, lost_after_seconds=5.0, members=(member,)
    )


async def test_silent_gangs_delay_no_report_of_a_healthy_one(
    eye: Eye, agents: list[FakeAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONNECT_SECONDS", "TIMEOUT_SECONDS"):  # no silent gang is given up meanwhile
        monkeypatch.setattr(clients, name, 3600.0)
    async with HostileAgent("127.0.0.2", silent, port=agents[0].port) as mute:
        for number in range(64):
            eye.watch.follow(hostile_gang(f"mute-{number}", mute))
        eye.watch.follow(gang(agents))
        await eye.until(lambda _: True)
        assert mute.ended == 0


async def test_gangs_that_were_asked_and_stay_silent_do_not_put_off_the_first_request_to_another(
    eye: Eye, agents: list[FakeAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with HostileAgent("127.0.0.2", silent, port=agents[0].port) as mute:
        for number in range(8):
            eye.watch.follow(hostile_gang(f"mute-{number}", mute))
        await mute.until_asked(8)
        monkeypatch.setattr(watches, "REQUESTS_PER_SECOND", 1 / 3600)
        eye.watch.follow(gang(agents))
        await eye.until(lambda _: True)


async def test_an_agent_that_always_has_news_is_asked_within_its_allowance_only(
    eye: Eye, agents: list[FakeAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PACE_SECONDS", 0.0), ("RETRY_SECONDS", 0.0)):
        monkeypatch.setattr(watches, name, value)
    monkeypatch.setattr(allowances, "BURST_REQUESTS", 8)
    monkeypatch.setattr(allowances, "BURST_REQUESTS_PER_MEMBER", 0)
    monkeypatch.setattr(allowances, "REFILL_SECONDS", 1e6)
    status = replace(agents[0].status, job_uid="flood", pod_uid="pod")
    async with HostileAgent("127.0.0.2", always_news(status), port=agents[0].port) as flood:
        eye.watch.follow(hostile_gang("flood", flood))
        await flood.until_asked(8)
        eye.watch.follow(gang(agents))
        for step in range(4):  # long enough for further requests, had they been made
            notice = NoticeAnswer(id=f"n{step}")
            agents[0].change(notice=notice)
            await eye.until(lambda report, notice=notice: report.status.notice == notice)
        assert flood.requests == 8


async def test_an_agent_that_answers_every_other_time_does_not_fill_the_log(
    eye: Eye, agents: list[FakeAgent], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    log = SimpleNamespace(info=lambda event, **_: lines.append(event))
    for name, value in (("PACE_SECONDS", 0.0), ("RETRY_SECONDS", 0.0), ("log", log)):
        monkeypatch.setattr(watches, name, value)
    status = replace(agents[0].status, job_uid="flicker", pod_uid="pod")
    async with HostileAgent("127.0.0.2", every_other_time(status), port=agents[0].port) as flicker:
        eye.watch.follow(hostile_gang("flicker", flicker))
        await flicker.until_asked(12)
    assert lines == ["agent_silent"]
