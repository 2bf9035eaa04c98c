"""Waiting times in queries of requests to the agent."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import pytest

from drumline_agent.api.departures import Departures
from drumline_agent.api.routes import STATUS_PATH, Api
from drumline_agent.http.message import HttpError, HttpRequest
from drumline_agent.state.rank_status import RankStatusStore
from drumline_agent.state.record_store import RecordStore
from drumline_contract import SIGNATURE_HEADER, AgentStatus, sign
from tests.patience import HANG_SECONDS
from tests.unit.agent.settings_builder import agent_settings

TOKEN = b"token"
SIGNED = {SIGNATURE_HEADER.lower(): sign(TOKEN, b"get", STATUS_PATH.encode())}


@pytest.fixture
def api() -> Api:
    records = RecordStore(token=TOKEN, job_uid="j", pod_uid="p", index=0, lowest_generation=1)
    status = RankStatusStore(agent_settings())
    return Api(token=TOKEN, records=records, status=status, departures=Departures())


def asked(query: str) -> HttpRequest:
    return HttpRequest(method="GET", path=f"{STATUS_PATH}?{query}", headers=SIGNED)


@pytest.mark.parametrize("wait", ["nan", "-nan", "-1", "-inf", "0"])
async def test_a_time_that_is_none_leaves_timers_in_order(api: Api, wait: str) -> None:
    version = AgentStatus.parse((await api.answer(asked(""))).body).version
    loop, called = asyncio.get_running_loop(), list[int]()
    last = asyncio.Event()
    begun = loop.time()
    for seconds in (3, 1):
        loop.call_at(begun + seconds / 100, called.append, seconds)
    polls = [
        asyncio.create_task(api.answer(asked(f"since={version}&wait={wait}"))) for _ in range(3)
    ]
    await asyncio.sleep(0)
    for seconds in (2, 0):
        loop.call_at(begun + seconds / 100, called.append, seconds)
    loop.call_at(begun + 0.04, last.set)
    async with asyncio.timeout(HANG_SECONDS):
        await last.wait()
        answers = await asyncio.gather(*polls)
    assert called == [0, 1, 2, 3]
    assert {answer.status for answer in answers} == {HTTPStatus.OK}


@pytest.mark.parametrize("query", ["since=x", "since=1&wait=x", "since=1e9"])
async def test_what_is_no_number_is_refused(api: Api, query: str) -> None:
    with pytest.raises(HttpError) as refused:
        await api.answer(asked(query))
    assert refused.value.status == HTTPStatus.BAD_REQUEST
