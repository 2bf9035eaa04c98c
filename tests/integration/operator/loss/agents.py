"""Stand-in agents on the tests' event loop, each on a loopback address of its own.

They take what a real agent takes: a record of a higher generation, with the members that are there;
a notice once.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

from aiohttp import web

from drumline_contract import (
    AGENT_PORT,
    SIGNATURE_HEADER,
    AgentPhase,
    AgentStatus,
    GenerationRecord,
    Notice,
    NoticeAnswer,
    Progress,
    verify,
)
from tests.patience import HANG_SECONDS

_addresses = itertools.count(1)


def fresh_address() -> str:
    """A loopback address that nothing listens on: KWOK's pods are in 127.77."""
    number = next(_addresses)
    return f"127.{80 + number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"


@dataclass(kw_only=True)
class Agent:
    """The agent of one pod."""

    gang: Gang
    token: bytes
    pod: str
    status: AgentStatus
    listener: socket.socket
    site: web.SockSite
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self, **fields: Any) -> None:
        self.status = replace(self.status, version=self.status.version + 1, **fields)
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


@dataclass(kw_only=True)
class Gang:
    """What the agents of one job have agreed on, and what they were sent."""

    uid: str
    saves: Progress | None = None
    """The checkpoint that every notice is answered with at once."""
    agents: dict[str, Agent] = field(default_factory=dict[str, Agent])
    """By the uid of the pod."""
    record: GenerationRecord | None = None
    notices: list[Notice] = field(default_factory=list[Notice])
    saved: int = 0
    """Newest step whose checkpoint was acknowledged."""
    wrong: list[str] = field(default_factory=list[str])
    """What no operator may ask of them."""
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def noticed(self, *, withdraw: bool = False) -> None:
        """Return once the newest notice is of this kind."""
        async with asyncio.timeout(HANG_SECONDS):
            while not self.notices or self.notices[-1].withdraw != withdraw:
                self.heard.clear()
                await self.heard.wait()

    def take_record(self, record: GenerationRecord) -> int:
        """As the agent of the store: the code of the answer."""
        known = self.record
        if known is not None and known.generation > record.generation:
            return 409
        if known is not None and known.generation == record.generation:
            same = [member.pod_uid for member in known.members] == [
                member.pod_uid for member in record.members
            ]
            if not same:
                return 409
        if known is not None and (record.restore_step or 0) < self.saved:
            self.wrong.append(f"I11: generation {record.generation} loses step {self.saved}")
        self.record = record
        for member in record.members:
            agent = self.agents.get(member.pod_uid)
            if agent is not None:
                agent.change(generation=record.generation, phase=AgentPhase.RUNNING)
        return 200

    def take_notice(self, notice: Notice) -> None:
        self.notices.append(notice)
        self.heard.set()
        answer = None if notice.withdraw else NoticeAnswer(id=notice.id)
        progress: Progress | None = None
        if answer is not None and self.saves is not None:
            progress = self.saves
            self.saved = max(self.saved, progress.checkpoint_step or 0)
            answer = replace(
                answer, step=progress.checkpoint_step, digest=progress.checkpoint_digest
            )
        for agent in self.agents.values():
            fields: dict[str, Any] = {"notice": answer}
            if progress is not None:
                fields["progress"] = progress
            agent.change(**fields)


class AgentHost:
    """One server for the agents of all pods; an async context manager."""

    def __init__(self) -> None:
        self._by_address: dict[str, Agent] = {}
        self._runner: web.AppRunner

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/v1/status", self._status)
        app.router.add_put("/v1/record", self._record)
        app.router.add_put("/v1/notice", self._notice)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        return self

    async def __aexit__(self, *_: object) -> None:
        for address in list(self._by_address):
            await self.stop(address)
        await self._runner.cleanup()

    async def start(
        self, gang: Gang, *, address: str, token: bytes, pod: str, uid: str, index: int
    ) -> None:
        listener = socket.create_server((address, AGENT_PORT))
        site = web.SockSite(self._runner, listener)
        status = AgentStatus(
            job_uid=gang.uid,
            pod_uid=uid,
            index=index,
            generation=0,
            attempt=0,
            phase=AgentPhase.WAITING,
            progress=Progress(),
            version=1,
        )
        agent = Agent(gang=gang, token=token, pod=pod, status=status, listener=listener, site=site)
        self._by_address[address] = gang.agents[uid] = agent
        await site.start()

    async def stop(self, address: str) -> None:
        """Its process is gone: connections are refused from now on.

        A connection that was accepted in this turn of the loop gets its transport in the next; if
        the server is closed before, Python 3.11 fails to make one and leaves the socket open.
        """
        agent = self._by_address.pop(address, None)
        if agent is not None:
            agent.gang.agents.pop(agent.status.pod_uid, None)
            asyncio.get_running_loop().remove_reader(agent.listener)
            await asyncio.sleep(0)
            await agent.site.stop()

    def _agent(self, request: web.Request) -> Agent:
        transport = request.transport
        assert transport is not None
        address = transport.get_extra_info("sockname")[0]
        agent = self._by_address.get(address)
        if agent is None:
            transport.abort()
            raise web.HTTPGone
        return agent

    async def _status(self, request: web.Request) -> web.Response:
        agent = self._agent(request)
        signature = request.headers.get(SIGNATURE_HEADER, "")
        if not verify(agent.token, signature, b"get", request.path.encode()):
            return web.Response(status=401)
        if "since" in request.query:
            changed = agent.changed
            if agent.status.version == int(request.query["since"]):
                try:
                    async with asyncio.timeout(float(request.query["wait"])):
                        await changed.wait()
                except TimeoutError:
                    pass
        return web.Response(body=agent.status.encode())

    async def _record(self, request: web.Request) -> web.Response:
        return await self._put(
            request, b"record", lambda gang, body: gang.take_record(GenerationRecord.parse(body))
        )

    async def _notice(self, request: web.Request) -> web.Response:
        def take(gang: Gang, body: bytes) -> int:
            gang.take_notice(Notice.parse(body))
            return 200

        return await self._put(request, b"notice", take)

    async def _put(
        self, request: web.Request, kind: bytes, take: Callable[[Gang, bytes], int]
    ) -> web.Response:
        body = await request.read()
        agent = self._agent(request)
        if not verify(agent.token, request.headers[SIGNATURE_HEADER], kind, body):
            return web.Response(status=401)
        code = take(agent.gang, body)
        known = agent.gang.record.generation if agent.gang.record else 0
        return web.Response(status=code, body=json.dumps({"generation": known}).encode())
